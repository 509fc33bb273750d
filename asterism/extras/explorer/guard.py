"""Admits only the requests of this server's own pages, with the token in the address, from this machine.

The Host header must be the server's own: a foreign name that points to 127.0.0.1 (DNS rebinding) is refused. Pages of
other origins are refused by their Origin and Sec-Fetch-Site headers. Without the token nothing is answered.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

# Scripts, styles and pictures come from this server only; nothing can be framed, submitted or loaded from elsewhere.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


class Guard:
    """Refuses requests that are not from the page, and adds the security headers to every answer."""

    def __init__(self, app: App, token: str, hosts: Collection[str]) -> None:
        self._app = app
        self._token = token.encode()
        self._hosts = frozenset(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        refusal = self._refusal(scope)
        if refusal is None:
            await self._app(scope, receive, _with_headers(send))
        else:
            await _refuse(_with_headers(send), *refusal)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        headers = [(name.lower(), value.decode("latin-1")) for name, value in scope["headers"]]
        hosts = [value for name, value in headers if name == b"host"]
        if len(hosts) != 1 or hosts[0] not in self._hosts:
            return 421, "this address is not the explorer's; open the one that it printed"
        origins = [value for name, value in headers if name == b"origin"]
        sites = [value for name, value in headers if name == b"sec-fetch-site"]
        foreign = any(origin != f"http://{hosts[0]}" for origin in origins)
        if foreign or ("cross-site" in sites and not (scope["method"] == "GET" and _is_opened(headers))):
            return 403, "pages of other sites may not use the explorer"
        first = scope["path"].encode("utf-8", "surrogateescape").split(b"/", 2)[1:2]
        if not first or not secrets.compare_digest(first[0], self._token):
            return 403, "the address lacks the explorer's token; open the address that it printed"
        return None


def _is_opened(headers: list[tuple[bytes, str]]) -> bool:
    """Whether a person follows a link, for example from a chat program: a document, not data for a foreign page."""
    return (b"sec-fetch-mode", "navigate") in headers and (b"sec-fetch-dest", "document") in headers


def _with_headers(send: Send) -> Send:
    async def wrapped(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            present = {name.lower() for name, _ in message.get("headers", [])}
            more = [(k.encode(), v.encode()) for k, v in _HEADERS.items() if k.encode() not in present]
            if b"cache-control" not in present:
                more.append((b"cache-control", b"no-store"))
            message = {**message, "headers": [*message.get("headers", []), *more]}
        await send(message)

    return wrapped


async def _refuse(send: Send, status: int, sentence: str) -> None:
    body = json.dumps({"error": sentence}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
