"""What endpoints return, and how they refuse."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

from jaxtyping import UInt8
from torch import Tensor

from asterism.images.write import to_pillow

_KEPT = "private, max-age=600"  # by the browser, for as long as somebody looks at the same images


class Refused(Exception):
    """A request that is not answered: an HTTP status of the 4xx kind and one sentence."""

    def __init__(self, sentence: str, status: int = 400) -> None:
        super().__init__(sentence)
        self.status = status


class Pending(Exception):
    """The answer is being computed; the page repeats its request."""


@dataclass(frozen=True)
class Answer:
    """The body of a response."""

    body: bytes
    media_type: str
    headers: Mapping[str, str] = field(default_factory=dict)
    status: int = 200


def as_json(value: Any, status: int = 200) -> Answer:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Answer(text.encode("utf-8", "backslashreplace"), "application/json", status=status)


def as_bytes(body: bytes) -> Answer:
    return Answer(body, "application/octet-stream")


def as_picture(image: UInt8[Tensor, "3 h w"], **facts: str) -> Answer:
    """A JPEG; facts become headers."""
    file = BytesIO()
    to_pillow(image).save(file, "JPEG", quality=88)
    return Answer(file.getvalue(), "image/jpeg", {"Cache-Control": _KEPT, **facts})
