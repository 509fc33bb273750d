"""Connections that send nothing, half a head or half a body end; one whose answer takes long does not."""

import socket
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from asterism.extras.explorer import server
from asterism.extras.explorer.answers import Answer
from tests.extras.explorer.explored_sample import sample
from tests.extras.explorer.served import served


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        ("", b""),
        ("GET /seen/api/world HTTP/1.1\r\nHost: ", b""),
        ("POST /seen/api/use/label HTTP/1.1\r\nHost: {host}\r\nContent-Length: 9\r\n\r\n{{", b"HTTP/1.1 408"),
        ("GET /seen/api/use/scores HTTP/1.1\r\nHost: {host}\r\n\r\n", b"HTTP/1.1 200"),
    ],
    ids=["nothing", "half a head", "half a body", "slow answer"],
)
def test_a_connection_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: str, answer: bytes) -> None:
    monkeypatch.setattr(server, "_PATIENCE", 0.2)
    monkeypatch.setattr(server, "_answered", lambda *_: time.sleep(1) or Answer(b"slow", "text/plain"))
    with served(sample(tmp_path)) as address:
        place = urlsplit(address)
        with socket.create_connection((str(place.hostname), int(place.port or 0)), timeout=10) as connection:
            connection.sendall(sent.format(host=place.netloc).encode())
            received = b""
            while part := connection.recv(4096):
                received += part
    assert received[:12] == answer
