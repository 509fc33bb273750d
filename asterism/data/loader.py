"""Batches of views for training, identical on every run, for any number of processes and from any starting step.

Every random draw is a function of (seed, epoch, image), so a run that resumes at step s needs only s.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor
from torch.utils.data import Dataset

from asterism.config import Config
from asterism.data.kept import KeptImages
from asterism.data.order import BatchRequest, BatchRequests, EpochOrder
from asterism.data.readable import ReadableImages
from asterism.data.sources.source import Sample, Source
from asterism.data.views import Views
from asterism.data.workers import cores, prepare
from asterism.errors import UserError
from asterism.images.bad_image import BadImage
from asterism.images.masks import VOID
from asterism.ops.geometry import geometry_from_rows
from asterism.ops.normalise import IMAGENET_MEAN, IMAGENET_STD, normalise
from asterism.ops.random import fold
from asterism.ranges import Few, FewFromZero, NonNegative, Number, Positive, Share
from asterism.types import Batch, View

_PIXELS_AT_ONCE = 1 << 22  # of decoded images held in memory: twelve megabytes


class DataConfig(Config):
    """Where the images come from and how they are loaded."""

    path: str  # folder, tar shards, or the name of a data set
    split: str | None = None  # None: the training split if there is one, else everything
    workers: FewFromZero | Literal["auto"] = "auto"  # processes that make views; 0: the training process
    prefetch: Few = 2  # micro-batches that each worker prepares in advance
    keep_mb: NonNegative = 0  # megabytes of decoded images that each worker keeps; 0: decode every time
    shuffle: bool = True
    max_bad_share: Share = 0.05  # of unreadable images; above it the run stops
    mean: tuple[Number, Number, Number] = IMAGENET_MEAN  # of RGB in [0, 1], subtracted
    std: tuple[Positive, Positive, Positive] = IMAGENET_STD  # divisor after subtracting the mean


@dataclass(frozen=True)
class RawBatch:
    """A micro-batch as it leaves a worker: bytes on the CPU."""

    views: tuple[UInt8[Tensor, "b 3 _ _"], ...]
    segments: dict[int, UInt8[Tensor, "b _ _"]]  # labels by view number, for the views that request them
    geometry: Float[Tensor, "v b 7"]  # rows for `ops.geometry.geometry_from_rows`
    index: Int[Tensor, " b"]  # position in the source of the image shown
    keys: Int[Tensor, " b"]  # fold(seed, epoch, position of the image drawn)
    bad: list[BadImage]  # encountered while loading this batch
    seen: int = 0  # images seen by all processes from the start of the run to the end of this step

    def pin_memory(self) -> RawBatch:
        """Called by torch's loader when batches are copied to a GPU."""
        return replace(
            self,
            views=tuple(view.pin_memory() for view in self.views),
            segments={number: labels.pin_memory() for number, labels in self.segments.items()},
            geometry=self.geometry.pin_memory(),
            index=self.index.pin_memory(),
            keys=self.keys.pin_memory(),
        )


class Loader:
    """The micro-batches of one process, from step `start_step` to step `steps`: `accumulate` per step.

    The global batch of a step does not depend on the number of processes or micro-batches; each takes a contiguous
    piece. An unreadable image is replaced by the next readable one in the source, wrapping around at the end. That
    image is then seen twice, with different views.
    """

    def __init__(
        self,
        source: Source,
        views: Views,
        config: DataConfig,
        *,
        batch_size: int,
        seed: int,
        steps: int,
        start_step: int = 0,
        accumulate: int = 1,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        if batch_size % (accumulate * world_size):
            raise UserError(
                f"the batch size {batch_size} does not divide over {world_size} processes × {accumulate} "
                f"micro-batches; choose a multiple of {accumulate * world_size}"
            )
        self._order = EpochOrder(len(source), batch_size, seed, shuffle=config.shuffle)
        self._requests = BatchRequests(self._order, range(start_step, steps), accumulate, rank, world_size)
        self._views = views
        self._tasks = _MicroBatches(source, views, seed, config.keep_mb)
        self._workers = max(1, cores() // world_size) if config.workers == "auto" else config.workers
        self._prefetch = config.prefetch

    @property
    def steps_per_epoch(self) -> int:
        return self._order.steps_per_epoch

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[RawBatch]:
        self._views.prepare()
        return prepare(
            self._tasks,
            self._requests,
            workers=self._workers,
            prefetch=self._prefetch,
            pin_memory=torch.cuda.is_available(),
        )


def to_batch(raw: RawBatch, device: torch.device, mean: Sequence[float], std: Sequence[float]) -> Batch:
    """The batch on its device: bytes are copied, then converted to floats there."""
    overlap = device.type == "cuda"  # on other devices the copy could be read before it has arrived
    rows = raw.geometry.to(device, non_blocking=overlap)
    views = tuple(
        View(
            pixels=normalise(pixels.to(device, non_blocking=overlap), mean, std),
            geometry=geometry_from_rows(rows[place]),
            segments=_signed(raw.segments[place].to(device, non_blocking=overlap)) if place in raw.segments else None,
        )
        for place, pixels in enumerate(raw.views)
    )
    return Batch(
        views,
        index=raw.index.to(device, non_blocking=overlap),
        keys=raw.keys.to(device, non_blocking=overlap),
    )


def _signed(labels: UInt8[Tensor, "b h w"]) -> Int[Tensor, "b h w"]:
    """Labels with −1 for void."""
    return labels.long().masked_fill_(labels == VOID, -1)


class _MicroBatches(Dataset[RawBatch | UserError]):
    """Decodes images and makes views: a pure function of the request, except for cached images and known bad ones."""

    def __init__(self, source: Source, views: Views, seed: int, keep_mb: float) -> None:
        self._source = source
        self._images = ReadableImages(source, KeptImages(source, keep_mb))
        self._views = views
        self._seed = seed

    def __getitem__(self, request: BatchRequest) -> RawBatch | UserError:
        try:
            return self._prepare(request)
        except UserError as error:  # returned, because an exception raised in a worker arrives as a traceback
            return error

    def _prepare(self, request: BatchRequest) -> RawBatch:
        keys = [fold(self._seed, request.epoch, drawn) for drawn in request.indices]
        bad: list[BadImage] = []
        shown = (self._images.find(drawn, bad) for drawn in request.indices)
        places, geometry = list[int](), list[Tensor]()
        pixels, segments = list[list[Tensor]](), list[list[Tensor]]()
        for group in _few_pixels(shown):
            samples = [sample for _, sample in group]
            first = len(places)
            places += [place for place, _ in group]
            sizes = [(sample.image.shape[1], sample.image.shape[2]) for sample in samples]
            parameters = self._views.sample(sizes, keys[first : len(places)])
            pixels.append(self._views.apply([sample.image for sample in samples], parameters))
            if self._views.with_labels:
                labels = [self._labels(sample) for sample in samples]
                segments.append(self._views.apply_labels(labels, parameters))
            geometry.append(self._views.geometry(parameters))
        return RawBatch(
            views=tuple(torch.cat(view) for view in zip(*pixels, strict=True)),
            segments={
                number: torch.cat(labels)
                for number, labels in zip(self._views.with_labels, zip(*segments, strict=True), strict=True)
            },
            geometry=torch.cat(geometry, dim=1),
            index=torch.tensor(places),
            keys=torch.tensor(keys),
            bad=bad,
            seen=request.seen,
        )

    def _labels(self, sample: Sample) -> UInt8[Tensor, "h w"]:
        if sample.semantic is None:
            raise UserError(
                f"{sample.key} of {self._source.name} has no mask, but the method needs labelled regions; choose "
                "data with masks, or settings without `segments`"
            )
        return sample.semantic.to(torch.uint8)


def _few_pixels(samples: Iterable[tuple[int, Sample]]) -> Iterator[list[tuple[int, Sample]]]:
    """The samples in groups: many small images form one group, large ones are released early."""
    group, pixels = [], 0
    for place, sample in samples:
        group.append((place, sample))
        pixels += sample.image.shape[1] * sample.image.shape[2]
        if pixels >= _PIXELS_AT_ONCE:
            yield group
            group, pixels = [], 0
    if group:
        yield group
