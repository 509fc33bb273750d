"""The images of a source in order, each once, in batches: what everything but training reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from torch.utils.data import Dataset

from asterism.data.sources.source import Sample, Source
from asterism.data.workers import prepare
from asterism.errors import UserError
from asterism.images.bad_image import BadImage

Entry = tuple[int, Sample | BadImage]  # place in the source, and what is there
Made = TypeVar("Made")


def read_batches(
    source: Source, make: Callable[[Iterator[Entry]], Made], *, batch_size: int, workers: int = 0, first: int = 0
) -> Iterator[Made]:
    """What `make` makes of every `batch_size` images from number `first` on.

    Images are read one after the other as `make` takes them, so it decides how many are in memory. Workers get a copy
    of `make` by pickling.
    """
    requests = [range(i, min(i + batch_size, len(source))) for i in range(first, len(source), batch_size)]
    return prepare(_Batches(source, make), requests, workers=workers, prefetch=2, pin_memory=False)


class _Batches(Dataset[Made | UserError]):
    def __init__(self, source: Source, make: Callable[[Iterator[Entry]], Made]) -> None:
        self._source, self._make = source, make

    def __getitem__(self, places: range) -> Made | UserError:
        try:
            return self._make(self._entries(places))
        except UserError as error:  # given back, as an exception from a worker would arrive as a traceback
            return error

    def _entries(self, places: range) -> Iterator[Entry]:
        for place in places:
            try:
                yield place, self._source[place]
            except BadImage as error:
                yield place, error
