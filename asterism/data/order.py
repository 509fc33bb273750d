"""Which images make up which batch: a function of the seed and the step alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from asterism.errors import UserError
from asterism.ops.random import fold, generator


class EpochOrder:
    """Each epoch visits the images in its own order; a last batch that is not full is dropped."""

    def __init__(self, images: int, batch_size: int, seed: int, *, shuffle: bool = True) -> None:
        if batch_size > images:
            raise UserError(
                f"the batch size {batch_size} is larger than the data set ({images} images); "
                f"choose trainer.batch_size of at most {images}"
            )
        self.images = images
        self.batch_size = batch_size
        self.seed = seed
        self.shuffle = shuffle
        self.steps_per_epoch = images // batch_size
        self._epoch = -1
        self._order = torch.empty(0, dtype=torch.int64)

    def epoch(self, step: int) -> int:
        return step // self.steps_per_epoch

    def batch(self, step: int) -> Int[Tensor, " b"]:
        """Positions of the images in a step's global batch."""
        start = step % self.steps_per_epoch * self.batch_size
        return self._permutation(self.epoch(step))[start : start + self.batch_size]

    def part(self, step: int, micro_batch: int, accumulate: int, rank: int, world_size: int) -> Int[Tensor, " b"]:
        """One process's share of one micro-batch: a contiguous piece of the global batch.

        Micro-batch j of all processes together is the j-th piece of the global batch, for any number of processes.
        """
        size = self.batch_size // (accumulate * world_size)
        start = (micro_batch * world_size + rank) * size
        return self.batch(step)[start : start + size]

    def _permutation(self, epoch: int) -> Tensor:
        if epoch != self._epoch:
            self._epoch = epoch
            self._order = (
                torch.randperm(self.images, generator=generator(fold(self.seed, epoch)))
                if self.shuffle
                else torch.arange(self.images)
            )
        return self._order


@dataclass(frozen=True)
class Request:
    """The images of a batch: everything that a worker needs to make it."""

    places: Sequence[int]  # in the source
    cause: tuple[int, int] | None = None  # (seed, epoch) of the random draws; None: nothing is drawn
    seen: int = 0  # images seen by all processes from the start of the run to the end of this step

    @property
    def keys(self) -> list[int]:
        """fold(seed, epoch, place) for every image."""
        return [] if self.cause is None else [fold(*self.cause, place) for place in self.places]

    @property
    def replace_bad(self) -> bool:
        """Whether another image takes the place of an unreadable one: in training, where batches have a fixed size."""
        return self.cause is not None


@dataclass(frozen=True)
class MicroBatches:
    """The micro-batches of one process, for these steps."""

    order: EpochOrder
    steps: range
    accumulate: int = 1
    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        pieces = self.accumulate * self.world_size
        if self.order.batch_size % pieces:
            raise UserError(
                f"the batch size {self.order.batch_size} does not divide over {self.world_size} processes × "
                f"{self.accumulate} micro-batches; choose a multiple of {pieces}"
            )

    def __len__(self) -> int:
        return len(self.steps) * self.accumulate

    def __iter__(self) -> Iterator[Request]:
        for step in self.steps:
            cause, seen = (self.order.seed, self.order.epoch(step)), (step + 1) * self.order.batch_size
            for micro_batch in range(self.accumulate):
                part = self.order.part(step, micro_batch, self.accumulate, self.rank, self.world_size)
                yield Request(part.tolist(), cause, seen)


def each_once(images: int, batch_size: int) -> list[Request]:
    """Every image once, in order, with nothing random."""
    return [Request(range(first, min(first + batch_size, images))) for first in range(0, images, batch_size)]
