"""The server of the explorer: one process on the loopback address, with a random token in the address."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import traceback
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asterism.errors import MissingExtra, UserError, explain_system_error
from asterism.extras.explorer.answers import Answer, Pending, Refused, as_json
from asterism.extras.explorer.endpoints import edit, find, image, map, runs, use
from asterism.extras.explorer.endpoints.endpoint import Endpoint
from asterism.extras.explorer.explored import Explored
from asterism.extras.explorer.guard import App, Guard
from asterism.extras.explorer.query import Query

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

ENDPOINTS: tuple[Endpoint, ...] = (
    *map.ENDPOINTS,
    *image.ENDPOINTS,
    *edit.ENDPOINTS,
    *find.ENDPOINTS,
    *use.ENDPOINTS,
    *runs.ENDPOINTS,
)
_LOOPBACK = "127.0.0.1"
_PAGE = Path(__file__).with_name("page")
_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_MOST_PARAMETERS = 12
_LONGEST_PARAMETER = 1000  # characters
_PATIENCE = 30.0  # seconds for a request to arrive


def serve(explored: Explored, port: int, *, show: bool, say: Callable[[str], None]) -> None:
    """Serve until interrupted. `say` gets the address; `show` opens it in a browser."""
    check_installed()
    with _bound(port) as listening:
        number = listening.getsockname()[1]
        token = secrets.token_urlsafe(18)
        address = f"http://{_LOOPBACK}:{number}/{token}/"
        server = build_server(build_app(explored, token, number))
        say(f"Exploring {len(explored.collection):,} images of {explored.collection.name}: {address}")
        say("Only this machine can open it. Stop with Ctrl-C.")
        listening.listen()  # a fast browser waits until the server accepts
        if show:
            webbrowser.open(address)
        with contextlib.suppress(KeyboardInterrupt):  # the way to stop it
            server.run(sockets=[listening])


def build_app(explored: Explored, token: str, port: int) -> App:
    """The application, without a server."""
    check_installed()
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.routing import Mount, Route

    pages = [Route(f"/{name}", _file(body, kind)) for name, (body, kind) in _files().items()]
    routes = [Route(f"/api/{each.path}", _asked(explored, each), methods=[each.method]) for each in ENDPOINTS]
    app = Starlette(
        routes=[Mount(f"/{token}", routes=[*pages, *routes])],
        exception_handlers={HTTPException: _no_such_page},
    )
    return Guard(app, token, [f"{_LOOPBACK}:{port}", f"localhost:{port}"])


def build_server(app: App) -> Any:
    """A uvicorn server. It ends connections that send no whole request; of those that send nothing it would keep any
    number, each of which is an open file."""
    import uvicorn
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

    class Impatient(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.loop.call_later(_PATIENCE, self._end_if_waiting, None)

        def _end_if_waiting(self, before: Any) -> None:
            """Without a request since the one `before`, which is answered."""
            if self.cycle is before and (before is None or before.response_complete):
                self.transport.abort()
            elif not self.transport.is_closing():
                self.loop.call_later(_PATIENCE, self._end_if_waiting, self.cycle)

    return uvicorn.Server(
        uvicorn.Config(
            app,
            http=Impatient,
            log_level="warning",
            access_log=False,
            lifespan="off",
            server_header=False,
            timeout_graceful_shutdown=1,
        )
    )


def check_installed() -> None:
    for package in ("starlette", "uvicorn"):
        try:
            __import__(package)
        except ImportError:
            raise MissingExtra(package, "explore") from None


def _bound(port: int) -> socket.socket:
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((_LOOPBACK, port))
    except OSError:
        listening.close()
        raise UserError(f"port {port} is in use; choose another with --port, or leave it out") from None
    return listening


def _files() -> dict[str, tuple[bytes, str]]:
    """The page's files by address. They are read once: no request ever becomes a path."""
    found = {file.name: (file.read_bytes(), _TYPES[file.suffix]) for file in _PAGE.iterdir() if file.suffix in _TYPES}
    return found | {"": found["index.html"]}


def _file(body: bytes, media_type: str) -> Callable[[Request], Any]:
    async def answer(request: Request) -> Response:
        return _response(Answer(body, f"{media_type}; charset=utf-8", {"Cache-Control": "no-cache"}))

    return answer


def _asked(explored: Explored, endpoint: Endpoint) -> Callable[[Request], Any]:
    from starlette.concurrency import run_in_threadpool

    async def answer(request: Request) -> Response:
        try:
            query = Query(_parameters(request, endpoint), await _body(request, endpoint.most_bytes))
            return _response(await run_in_threadpool(_answered, endpoint, explored, query))
        except Refused as error:
            return _response(_sentence(str(error), error.status))

    return answer


def _answered(endpoint: Endpoint, explored: Explored, query: Query) -> Answer:
    try:
        return endpoint.answer(explored, query)
    except Refused as error:
        return _sentence(str(error), error.status)
    except Pending:
        return as_json({"pending": True}, status=202)
    except UserError as error:
        return _sentence(str(error), 409)
    except Exception as error:
        explanation = explain_system_error(error)
        if explanation is not None:
            return _sentence(explanation, 409)
        traceback.print_exc()  # a bug: the terminal gets the traceback, the page a sentence
        return _sentence("the explorer failed to answer; its terminal shows why", 500)


def _parameters(request: Request, endpoint: Endpoint) -> dict[str, str]:
    given = request.query_params.multi_items()
    if len(given) > _MOST_PARAMETERS:
        raise Refused(f"a request has at most {_MOST_PARAMETERS} parameters")
    for name, value in given:
        if name not in endpoint.parameters:
            raise Refused(f"unknown parameter {name[:60]!r}; known are: {', '.join(endpoint.parameters) or 'none'}")
        if len(value) > _LONGEST_PARAMETER:
            raise Refused(f"the parameter {name} has {len(value):,} characters, more than {_LONGEST_PARAMETER:,}")
    if len({name for name, _ in given}) < len(given):
        raise Refused("a parameter is given twice")
    return dict(given)


async def _body(request: Request, most: int) -> bytes:
    parts, size = [], 0
    try:
        async with asyncio.timeout(_PATIENCE):
            async for part in request.stream():
                size += len(part)
                if size > most:
                    raise Refused(f"the body has more than {most:,} bytes", 413)
                parts.append(part)
    except TimeoutError:
        raise Refused(f"the body did not arrive in {_PATIENCE:g} seconds", 408) from None
    return b"".join(parts)


def _sentence(text: str, status: int) -> Answer:
    return as_json({"error": text}, status)


def _response(answer: Answer) -> Response:
    from starlette.responses import Response

    return Response(answer.body, answer.status, dict(answer.headers), answer.media_type)


async def _no_such_page(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    return _response(
        _sentence("this address answers another method" if status == 405 else "there is no such page", status)
    )
