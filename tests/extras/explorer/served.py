"""The explorer behind a real server in this process, and Chromium looking at it."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from asterism.extras.explorer.explored import Explored
from asterism.extras.explorer.server import build_app, build_server

# Debian's Chromium draws WebGL on the CPU with these.
FLAGS = [
    "--no-sandbox",
    "--use-gl=angle",
    "--use-angle=swiftshader",
    "--enable-unsafe-swiftshader",
    "--disable-background-networking",
]


@contextmanager
def served(explored: Explored) -> Iterator[str]:
    """The address of the page."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        server = build_server(build_app(explored, "seen", port))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.02)
        try:
            yield f"http://127.0.0.1:{port}/seen/"
        finally:
            server.should_exit = True
            thread.join(10)
