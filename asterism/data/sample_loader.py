"""Batches of labelled samples for training on a task, with the guarantees of `asterism.data.loader`.

The same on every run, for any number of processes and from any starting step: every random draw is a function of
(seed, epoch, image).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import torch
from torch.utils.data import Dataset

from asterism.data.order import BatchRequest, BatchRequests, EpochOrder
from asterism.data.readable import ReadableImages
from asterism.data.sources.source import Sample, Source
from asterism.data.workers import prepare
from asterism.errors import UserError
from asterism.images.bad_image import BadImage
from asterism.ops.random import fold

Made = TypeVar("Made")
Made_co = TypeVar("Made_co", covariant=True)


@runtime_checkable
class MakeBatch(Protocol[Made_co]):
    """Augments samples and combines them. Workers receive a pickled copy."""

    def __call__(self, samples: Sequence[Sample], keys: Sequence[int]) -> Made_co:
        """A micro-batch, as a function of the samples and their random keys alone."""
        ...


@dataclass(frozen=True)
class LoadedBatch(Generic[Made]):
    """A micro-batch as it leaves a worker."""

    made: Made
    bad: list[BadImage]  # encountered while loading this batch
    seen: int  # images seen by all processes from the start of the run to the end of this step

    def pin_memory(self) -> LoadedBatch[Made]:
        """Called by torch's loader when batches are copied to a GPU."""
        made: Any = self.made
        return replace(self, made=made.pin_memory())


class SampleLoader(Generic[Made]):
    """The micro-batches of one process, from step `start_step` to step `steps`: `accumulate` per step."""

    def __init__(
        self,
        source: Source,
        make: MakeBatch[Made],
        *,
        batch_size: int,
        seed: int,
        steps: int,
        workers: int,
        prefetch: int = 2,
        start_step: int = 0,
        accumulate: int = 1,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        order = EpochOrder(len(source), batch_size, seed)
        self._requests = BatchRequests(order, range(start_step, steps), accumulate, rank, world_size)
        self._batches = _Batches(source, make, seed)
        self._workers, self._prefetch = workers, prefetch

    def __iter__(self) -> Iterator[LoadedBatch[Made]]:
        return prepare(
            self._batches,
            self._requests,
            workers=self._workers,
            prefetch=self._prefetch,
            pin_memory=torch.cuda.is_available(),
        )


class _Batches(Dataset[LoadedBatch[Made] | UserError]):
    def __init__(self, source: Source, make: MakeBatch[Made], seed: int) -> None:
        self._images = ReadableImages(source)
        self._make, self._seed = make, seed

    def __getitem__(self, request: BatchRequest) -> LoadedBatch[Made] | UserError:
        bad: list[BadImage] = []
        try:
            samples = [self._images.find(drawn, bad)[1] for drawn in request.indices]
            keys = [fold(self._seed, request.epoch, drawn) for drawn in request.indices]
            return LoadedBatch(self._make(samples, keys), bad, request.seen)
        except UserError as error:  # returned, because an exception raised in a worker arrives as a traceback
            return error
