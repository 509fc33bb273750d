"""The images of a source in order, each once, in batches: read by everything except training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from torch.utils.data import Dataset

from asterism.data.sources.source import Sample, Source
from asterism.data.workers import prepare
from asterism.errors import UserError
from asterism.images.bad_image import BadImage

Entry = tuple[int, Sample | BadImage]  # position in the source, and the image there
Made = TypeVar("Made")


def read_batches(
    source: Source, make: Callable[[Iterator[Entry]], Made], *, batch_size: int, workers: int = 0, first: int = 0
) -> Iterator[Made]:
    """The results of `make` for every `batch_size` images, starting at image `first`.

    Images are read one at a time as `make` consumes them, so `make` decides how many are in memory. Workers receive a
    copy of `make`, pickled unless they are forked.
    """
    requests = [range(i, min(i + batch_size, len(source))) for i in range(first, len(source), batch_size)]
    return prepare(_Batches(source, make), requests, workers=workers, prefetch=2, pin_memory=False)


class _Batches(Dataset[Made | UserError]):
    def __init__(self, source: Source, make: Callable[[Iterator[Entry]], Made]) -> None:
        self._source, self._make = source, make

    def __getitem__(self, places: range) -> Made | UserError:
        try:
            return self._make(self._entries(places))
        except UserError as error:  # returned, because an exception raised in a worker arrives as a traceback
            return error

    def _entries(self, places: range) -> Iterator[Entry]:
        for place in places:
            try:
                yield place, self._source[place]
            except BadImage as error:
                yield place, error
