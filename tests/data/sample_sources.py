"""Sources for tests, at module level so that spawned workers can import them."""

import os
import signal
from collections.abc import Collection
from pathlib import Path

import torch

from asterism.data.sources.source import Sample
from asterism.images.bad_image import BadImage
from asterism.images.masks import VOID


class Numbered:
    """Image i is filled with the level i; some of them are bad."""

    def __init__(self, count: int, bad: Collection[int] = (), labelled: bool = True, side: int = 16) -> None:
        self.name = "numbered"
        self.fingerprint = "0"
        self.classes = ["even", "odd"] if labelled else None
        self.count = count
        self.bad = frozenset(bad)
        self.side = side

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Sample:
        if index in self.bad:
            raise BadImage(str(index), "it is bad")
        image = torch.full((3, self.side, self.side + 4), index, dtype=torch.uint8)
        return Sample(image, str(index), self.label(index))

    def label(self, index: int) -> int | None:
        return None if self.classes is None else index % 2

    def keys(self) -> list[str]:
        return [str(index) for index in range(self.count)]

    def files(self) -> tuple[Path, ...]:
        return ()


class Painted(Numbered):
    """Images with four regions and a void one, each filled with its own level."""

    STEP, UNKNOWN = 50, 4

    def __getitem__(self, index: int) -> Sample:
        rows, columns = torch.arange(self.side)[:, None], torch.arange(self.side + 4)
        regions = 2 * (rows > 4 + index) + (columns > 14 - index)
        regions[:5, :5] = self.UNKNOWN
        image = (regions * self.STEP).to(torch.uint8).expand(3, -1, -1)
        semantic = regions.masked_fill(regions == self.UNKNOWN, VOID)
        return Sample(image, str(index), self.label(index), semantic=semantic)


class Deadly(Numbered):
    """Reading image 30 kills the process."""

    def __getitem__(self, index: int) -> Sample:
        if index == 30:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


class Faulty(Numbered):
    """Reading image 3 raises a programming error."""

    def __getitem__(self, index: int) -> Sample:
        if index == 3:
            raise ZeroDivisionError("our own bug")
        return super().__getitem__(index)


class Deaf(Numbered):
    """Reading image 0 sends SIGINT and SIGTERM to the worker itself."""

    def __getitem__(self, index: int) -> Sample:
        if index == 0:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGTERM)
        return super().__getitem__(index)
