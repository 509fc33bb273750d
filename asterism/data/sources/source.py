"""What every source of images offers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from jaxtyping import Integer, Num, UInt8
from torch import Tensor


@dataclass(frozen=True)
class Sample:
    """One decoded image and whatever its source knows about it."""

    image: UInt8[Tensor, "3 h w"]  # RGB
    key: str  # names the image in its source: relative path, or number
    label: int | None = None  # place in the source's `classes`
    semantic: Integer[Tensor, "h w"] | None = None  # class of each pixel
    instances: Integer[Tensor, "h w"] | None = None  # object of each pixel, 0 for none
    boxes: Num[Tensor, "m 4"] | None = None  # left, top, right, bottom of each object, in pixels


@runtime_checkable
class Source(Protocol):
    """Images by number, in an order that never changes while the data does not. Must survive pickling.

    Pretraining reads images alone. Evaluations need labels: `classes` names them, and is None where there are none.
    """

    @property
    def name(self) -> str:
        """What people call the data, with its split."""
        ...

    @property
    def fingerprint(self) -> str:
        """A hash of what is in the source, equal on every machine, so that a result can name its data."""
        ...

    @property
    def classes(self) -> list[str] | None: ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Sample:
        """Decodes the image; raises `BadImage` where that is impossible."""
        ...

    def label(self, index: int) -> int | None:
        """The label without decoding the image; None in a source without labels."""
        ...

    def keys(self) -> list[str]:
        """The key of every sample, without decoding any."""
        ...

    def files(self) -> Iterable[Path]:
        """Every file that images or masks are read from; none where nothing on this machine can change them."""
        ...
