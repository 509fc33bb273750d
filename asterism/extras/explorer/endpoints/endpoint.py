"""One address of the server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from asterism.extras.explorer.answers import Answer
from asterism.extras.explorer.explored import Explored
from asterism.extras.explorer.query import Query

JSON_BYTES = 4 << 20  # of a request's body
PICTURE_BYTES = 48 << 20


@dataclass(frozen=True)
class Endpoint:
    """A function behind a path. Parameters that it does not name are refused."""

    path: str  # below api/
    answer: Callable[[Explored, Query], Answer]
    parameters: tuple[str, ...] = ()
    most_bytes: int = 0  # of a body; 0: it is read with GET and has none

    @property
    def method(self) -> str:
        return "POST" if self.most_bytes else "GET"
