"""Batches made from the images of a source, by worker processes.

Training, evaluations, embeddings and fine-tuning read through one loader. `order` names the images of every batch, and
`make` turns them into one. A batch is a function of its request alone, so it is the same for any number of workers and
processes, and a run that resumes at step s needs only s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import torch
from torch.utils.data import Dataset

from asterism.data.order import MicroBatches, Request
from asterism.data.sources.source import Sample, Source
from asterism.data.workers import prepare
from asterism.errors import UserError
from asterism.images.bad_image import BadImage

_LONGEST_RUN = 1000  # unreadable images in a row after which the data set itself must be at fault

Made = TypeVar("Made")

# Makes a batch from samples and the keys of their random draws (none in evaluations). Samples are decoded one at a
# time as they are consumed. Workers receive a copy of the function, pickled unless they are forked.
Make = Callable[[Iterator[Sample], Sequence[int]], Made]


@dataclass(frozen=True)
class Loaded(Generic[Made]):
    """A batch as it leaves a worker."""

    made: Made
    places: list[int]  # in the source, of the images in the batch
    keys: list[str]  # of these images in the source
    bad: list[BadImage]  # encountered while loading this batch
    seen: int  # images seen by all processes from the start of the run to the end of this step

    def pin_memory(self) -> Loaded[Made]:
        """Called by torch's loader when batches are copied to a GPU."""
        made: Any = self.made
        return replace(self, made=made.pin_memory())


class Loader(Generic[Made]):
    """What `make` makes of the images of a source, in this order. Workers start once per pass.

    In training, an unreadable image is replaced by the next readable one in the source, wrapping around at the end;
    that image is then seen twice, with different draws. An evaluation leaves it out. It is reported in `Loaded.bad` and
    not read again by the same worker.

    workers: processes that load; 0: this one. prefetch: batches that each of them prepares in advance. keep_mb:
    megabytes of decoded images that each of them keeps in memory. pin_memory: for copies to a GPU.
    """

    def __init__(
        self,
        source: Source,
        make: Make[Made],
        order: MicroBatches | Sequence[Request],
        *,
        workers: int = 0,
        prefetch: int = 2,
        keep_mb: float = 0,
        pin_memory: bool = False,
    ) -> None:
        self._batches = _Batches(source, make, keep_mb)
        self._order = order
        self._workers, self._prefetch, self._pin_memory = workers, prefetch, pin_memory

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[Loaded[Made]]:
        return prepare(
            self._batches,
            self._order,
            workers=self._workers,
            prefetch=self._prefetch,
            pin_memory=self._pin_memory and torch.cuda.is_available(),
        )


class _Batches(Dataset[Loaded[Made] | UserError]):
    """A function of the request, except for the images that are kept and the bad ones that are known."""

    def __init__(self, source: Source, make: Make[Made], keep_mb: float) -> None:
        self._images = _Images(source, keep_mb)
        self._make = make

    def __getitem__(self, request: Request) -> Loaded[Made] | UserError:
        shown = list[tuple[int, str]]()
        bad = list[BadImage]()
        try:
            made = self._make(self._read(request, shown, bad), request.keys)
        except UserError as error:  # returned, because an exception raised in a worker arrives as a traceback
            return error
        return Loaded(made, [place for place, _ in shown], [key for _, key in shown], bad, request.seen)

    def _read(self, request: Request, shown: list[tuple[int, str]], bad: list[BadImage]) -> Iterator[Sample]:
        """The samples; append the place and key of each to `shown`, and unreadable images to `bad`."""
        for wanted in request.places:
            for place in self._images.following(wanted) if request.replace_bad else (wanted,):
                try:
                    sample = self._images[place]
                except BadImage as error:
                    bad.append(error)
                else:
                    shown.append((place, sample.key))
                    yield sample
                    break


class _Images:
    """The images of a source by place; the first ones decoded stay in memory, and an unreadable one is read once.

    A cached image is never evicted: in shuffled passes every image is requested equally often, so no other choice would
    save more decoding. Of the masks, only pixel classes are kept, one byte each.
    """

    def __init__(self, source: Source, keep_mb: float) -> None:
        self._source = source
        self._kept: dict[int, Sample] = {}
        self._bytes_left = round(keep_mb * 2**20)
        self._bad: dict[int, BadImage] = {}

    def __getitem__(self, place: int) -> Sample:
        if place in self._bad:
            raise self._bad[place].with_traceback(None)
        if place in self._kept:
            return self._kept[place]
        try:
            sample = self._source[place]
        except BadImage as error:
            self._bad[place] = error
            raise
        return self._keep(place, sample) if self._bytes_left > 0 else sample

    def following(self, first: int) -> Iterator[int]:
        """Places from `first` on, wrapping around; an error after a long run, in which no image could be read."""
        count = min(len(self._source), _LONGEST_RUN)
        yield from ((first + step) % len(self._source) for step in range(count))
        raise UserError(
            f"{count} images in a row of {self._source.name} cannot be read, the first: {self._bad[first]}. "
            "Check that the data is complete and accessible"
        )

    def _keep(self, place: int, sample: Sample) -> Sample:
        semantic = None if sample.semantic is None else sample.semantic.to(torch.uint8)
        kept = replace(sample, semantic=semantic, instances=None, boxes=None)
        needed = kept.image.nbytes + (0 if semantic is None else semantic.nbytes)
        if needed <= self._bytes_left:
            self._kept[place] = kept
            self._bytes_left -= needed
        return kept
