"""Who may ask, and what nobody may ask: fuzzed endpoints answer 4xx with one sentence."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from asterism.extras.explorer.server import ENDPOINTS
from tests.extras.explorer.explored_sample import PORT, TOKEN, Client, client_of, sample

VALUES = [
    "", "-1", "12", "99999999999999999999", "1e3", "nan", "inf", "0x1", "½", "٣", "true", "null", "[]", "..",
    "../../etc/passwd", "%00", "\x00", "a" * 999, "a" * 5000, "'; drop table", "<script>", "{}",
    "0 ", "+1", "--1", "1_0",
]  # fmt: skip
GOOD = {("count", "12"), ("patch", "12")}  # the only ones among them
BODIES: list[Any] = [
    None, 0, True, "x", [], {}, {"rows": None}, {"rows": "0"}, {"rows": [None]}, {"rows": [True]}, {"rows": [1.5]},
    {"rows": [-1]}, {"rows": [12]}, {"rows": [10**30]}, {"rows": [[0]]}, {"rows": list(range(12)) * 20_000},
    {"row": "0"}, {"row": 99}, {"row": None}, {"row": 0, "drop": "1"}, {"row": 0, "drop": [3]}, {"row": 0, "move": [1]},
    {"row": 0, "move": [{"token": 0, "down": 10**9, "right": 0}]}, {"row": 0, "swap": [{"token": 0, "theirs": 0}]},
    {"row": 0, "swap": [{}], "other": 1}, {"rows": [0], "kind": "exe"}, {"rows": [0], "kind": 5},
    {"rows": [0], "label": "x" * 81}, {"rows": [0], "label": 5}, {"rows": [0], "label": " "},
]  # fmt: skip
FOLDERS = ["..", "../x", "/etc", "a/b", ".hidden", "", " ", "x" * 65, "a\x00b", "a\nb", "C:\\x", "~", "é"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("explored")


@pytest.fixture(scope="module")
def client(folder: Path) -> Client:
    return client_of(sample(folder))


def refused(response: Any) -> bool:
    """4xx with one sentence, and not a trace or a path of the machine."""
    assert 400 <= response.status_code < 500, (response.status_code, response.text[:300])
    sentence = response.json()["error"]
    assert sentence
    assert "\n" not in sentence
    assert "Traceback" not in response.text
    assert len(sentence) < 400
    return True


def test_every_parameter_of_every_endpoint(client: Client) -> None:
    """Bad values are refused; values that happen to be good are answered; nothing fails."""
    for endpoint in ENDPOINTS:
        for name, value in itertools.product(endpoint.parameters, VALUES):
            good = {
                "row": "0",
                "show": "photo",
                "by": "cluster",
                "patch": "0",
                "token": "0",
                "clusters": "2",
                "cluster": "0",
            }
            given = {each: text for each, text in good.items() if each in endpoint.parameters} | {name: value}
            send = client.http.get if endpoint.method == "GET" else client.http.post
            response = send(f"/{TOKEN}/api/{endpoint.path}", params=given)
            assert response.status_code in (200, 202) or refused(response), (endpoint.path, given)
            if name in ("row", "patch", "count", "size", "show", "by", "of", "layout", "model"):
                assert response.status_code not in (200, 202) or (name, value) in GOOD, (endpoint.path, given)


@pytest.mark.parametrize(
    "path", [each.path for each in ENDPOINTS if each.method == "POST" and each.path != "find/file"]
)
def test_every_body(client: Client, path: str) -> None:
    for body in BODIES:
        response = client.post(path, body)
        assert response.status_code == 200 or refused(response), body
    for raw in (b"", b"\xff\xfe", b"{", b"[" * 100_000, b'{"rows":[1e999]}'):
        assert refused(client.post(path, raw))
    assert client.post(path, b" " * ((4 << 20) + 1)).status_code == 413


def test_files_that_are_not_images(client: Client) -> None:
    for raw in (b"", b"x", b"\xff\xd8\xff" + b"0" * 100, b"\x89PNG\r\n\x1a\n" + b"0" * 50, b"GIF89a", b"%!PS-Adobe"):
        assert refused(client.post("find/file", raw))


@pytest.mark.parametrize("name", FOLDERS)
def test_folders_outside_are_unreachable(client: Client, folder: Path, name: str) -> None:
    before = sorted(folder.rglob("*"))
    assert refused(client.post("use/copy", {"rows": [0], "folder": name}))
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize(
    "path",
    ["../server.py", "..%2fserver.py", "%2e%2e/server.py", "page/../../server.py", "//etc/passwd", "api/", "api/image",
     "style.css/x", "index.html%00", "api/image/thumbnail/0", "a" * 3000],
)  # fmt: skip
def test_no_path_becomes_a_file(client: Client, path: str) -> None:
    assert refused(client.http.get(f"/{TOKEN}/{path}"))


def test_unknown_and_repeated_parameters(client: Client) -> None:
    for query in ("row=0&path=/etc/passwd", "row=0&row=1", "&".join(f"x{i}=1" for i in range(500))):
        assert refused(client.http.get(f"/{TOKEN}/api/image/thumbnail?{query}"))


def test_other_methods(client: Client) -> None:
    assert client.http.post(f"/{TOKEN}/api/world").status_code == 405
    assert client.http.put(f"/{TOKEN}/api/edit").status_code == 405
    assert client.http.get(f"/{TOKEN}/api/edit").status_code == 405


@pytest.mark.parametrize(
    "path", ["/", "/api/world", "/wrong/", "/the-token2/", "/the-toke/api/world", "/favicon.ico", "//"]
)
def test_without_the_token_nothing_is_answered(client: Client, path: str) -> None:
    assert client.http.get(path).status_code == 403


@pytest.mark.parametrize(
    "host", ["evil.example", f"evil.example:{PORT}", "127.0.0.1", "127.0.0.1:1", f"127.0.0.1.evil.example:{PORT}", ""]
)
def test_another_host_name_is_refused(client: Client, host: str) -> None:
    """DNS rebinding: a foreign name that has become 127.0.0.1 still sends its own name."""
    assert client.http.get(f"/{TOKEN}/api/world", headers={"host": host}).status_code == 421


def test_other_sites_are_refused(client: Client) -> None:
    address = f"/{TOKEN}/api/world"
    for headers in (
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"},
    ):
        assert client.http.get(address, headers=headers).status_code == 403
    assert client.http.post(f"/{TOKEN}/api/edit", headers={"origin": "http://localhost:9"}).status_code == 403
    opened = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    assert client.http.get(f"/{TOKEN}/", headers=opened).status_code == 200
    assert client.http.get(address, headers={"origin": f"http://127.0.0.1:{PORT}"}).status_code == 200


def test_headers_of_every_answer(client: Client) -> None:
    for path in ("", "main.js", "api/world", "api/nothing", "api/image/thumbnail?row=0"):
        headers = client.http.get(f"/{TOKEN}/{path}").headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "http" not in policy
        assert (headers["x-content-type-options"], headers["referrer-policy"]) == ("nosniff", "no-referrer")
        assert "access-control-allow-origin" not in headers
        assert "server" not in headers


def test_the_page_loads_nothing_from_elsewhere(client: Client) -> None:
    from asterism.extras.explorer import server

    for name, (body, _) in server._files().items():
        text = body.decode().replace("http://www.w3.org/2000/svg", "")
        assert "http:" not in text, name
        assert "https:" not in text, name
        assert "innerHTML" not in text, name
        assert client.http.get(f"/{TOKEN}/{name}").status_code == 200


def test_a_bug_is_a_sentence_on_the_page(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    explored = sample(folder)
    monkeypatch.setattr(type(explored.collection), "image", lambda *_: 1 / 0)
    answer = client_of(explored).http.get(f"/{TOKEN}/api/image/thumbnail", params={"row": 0})
    assert (answer.status_code, json.loads(answer.text)["error"]) == (
        500,
        "the explorer failed to answer; its terminal shows why",
    )
    assert "ZeroDivisionError" in capsys.readouterr().err
