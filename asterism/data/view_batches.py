"""Batches of views for pretraining: cut by workers from bytes, sent to the device as bytes, and normalised there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from asterism.config import Config
from asterism.data.loader import Loaded, Loader
from asterism.data.order import EpochOrder, MicroBatches
from asterism.data.sources.source import Sample, Source
from asterism.data.views import Views
from asterism.data.workers import cores
from asterism.errors import UserError
from asterism.images.masks import VOID
from asterism.images.pictures import Pictures, as_list, read_picture
from asterism.ops import streams
from asterism.ops.geometry import geometry_from_rows
from asterism.ops.host import sent
from asterism.ops.normalise import IMAGENET_MEAN, IMAGENET_STD, normalise
from asterism.ops.random import fold
from asterism.ranges import Few, FewFromZero, NonNegative, Number, Positive, Share
from asterism.types import Batch, Progress, View, ViewSpec

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
class RawViews:
    """The views of a micro-batch as bytes on the CPU."""

    views: tuple[UInt8[Tensor, "b 3 _ _"], ...]
    segments: dict[int, UInt8[Tensor, "b _ _"]]  # labels by view number, for the views that request them
    geometry: Float[Tensor, "v b 7"]  # rows for `ops.geometry.geometry_from_rows`
    keys: Int[Tensor, " b"]  # fold(seed, epoch, position of the image drawn)

    def pin_memory(self) -> RawViews:
        return replace(
            self,
            views=tuple(view.pin_memory() for view in self.views),
            segments={number: labels.pin_memory() for number, labels in self.segments.items()},
            geometry=self.geometry.pin_memory(),
            keys=self.keys.pin_memory(),
        )


def view_loader(
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
) -> Loader[RawViews]:
    """The micro-batches of one process, from step `start_step` to step `steps`: `accumulate` per step.

    The global batch of a step does not depend on the number of processes or micro-batches; each takes a contiguous
    piece.
    """
    views.prepare()
    order = EpochOrder(len(source), batch_size, seed, shuffle=config.shuffle)
    return Loader(
        source,
        CutViews(views),
        MicroBatches(order, range(start_step, steps), accumulate, rank, world_size),
        workers=max(1, cores() // world_size) if config.workers == "auto" else config.workers,
        prefetch=config.prefetch,
        keep_mb=config.keep_mb,
        pin_memory=True,
    )


@dataclass(frozen=True)
class CutViews:
    """Makes views of decoded images; a few at a time, so that large ones are released early."""

    views: Views

    def __call__(self, samples: Iterable[Sample], keys: Sequence[int]) -> RawViews:
        done = 0
        geometry = list[Tensor]()
        pixels, segments = list[list[Tensor]](), list[list[Tensor]]()
        for group in _few_pixels(samples):
            sizes = [(sample.image.shape[1], sample.image.shape[2]) for sample in group]
            parameters = self.views.sample(sizes, keys[done : done + len(group)])
            pixels.append(self.views.apply([sample.image for sample in group], parameters))
            if self.views.with_labels:
                segments.append(self.views.apply_labels([_labels(sample) for sample in group], parameters))
            geometry.append(self.views.geometry(parameters))
            done += len(group)
        return RawViews(
            views=tuple(torch.cat(view) for view in zip(*pixels, strict=True)),
            segments={
                number: torch.cat(labels)
                for number, labels in zip(self.views.with_labels, zip(*segments, strict=True), strict=True)
            },
            geometry=torch.cat(geometry, dim=1),
            keys=torch.tensor(list(keys)),
        )


def to_batch(loaded: Loaded[RawViews], device: torch.device, mean: Sequence[float], std: Sequence[float]) -> Batch:
    """The batch on its device: bytes are copied, then converted to floats there."""
    return _on_device(loaded.made, torch.tensor(loaded.places), device, mean, std)


def make_batch(
    images: Pictures,
    views: Sequence[ViewSpec],
    progress: Progress,
    *,
    index: Int[Tensor, " b"] | Sequence[int] | None = None,
    mean: Sequence[float] = IMAGENET_MEAN,
    std: Sequence[float] = IMAGENET_STD,
    device: str | torch.device = "cpu",
) -> Batch:
    """The views that a method requests (`method.views`), cut from images of any size, in the form its `loss` expects.

    For training loops of your own. images: anything that `Encoder.encode` accepts. index: the number of each image in
    its data set; crops, masks and dropped paths are drawn from (seed, epoch, index). Without it they are drawn from the
    step and the position in the batch. mean, std: of RGB in [0, 1], as the encoder expects them.
    """
    cut, pictures = CutViews(Views(views)), [read_picture(image) for image in as_list(images)]
    if cut.views.with_labels:
        raise UserError("these views need pixel labels (`segments`), which plain images do not have")
    numbers = range(len(pictures)) if index is None else [int(number) for number in index]
    if len(numbers) != len(pictures):
        raise UserError(f"there are {len(pictures)} images, but index has {len(numbers)} numbers; give one per image")
    by_step = (progress.seed, progress.step, streams.OwnBatch.POSITION)
    cause = by_step if index is None else (progress.seed, progress.epoch)
    samples = (Sample(image, str(number)) for image, number in zip(pictures, numbers, strict=True))
    raw = cut(samples, [fold(*cause, number) for number in numbers])
    return _on_device(raw, torch.tensor(list(numbers)), torch.device(device), mean, std)


def _on_device(
    raw: RawViews, index: Int[Tensor, " b"], device: torch.device, mean: Sequence[float], std: Sequence[float]
) -> Batch:
    rows = sent(raw.geometry, device)
    views = tuple(
        View(
            pixels=normalise(sent(pixels, device), mean, std),
            geometry=geometry_from_rows(rows[place]),
            segments=_signed(sent(raw.segments[place], device)) if place in raw.segments else None,
        )
        for place, pixels in enumerate(raw.views)
    )
    return Batch(views, index=sent(index, device), keys=raw.keys)


def _signed(labels: UInt8[Tensor, "b h w"]) -> Int[Tensor, "b h w"]:
    """Labels with −1 for void."""
    return labels.long().masked_fill_(labels == VOID, -1)


def _labels(sample: Sample) -> UInt8[Tensor, "h w"]:
    if sample.semantic is None:
        raise UserError(
            f"{sample.key} has no mask, but the method needs labelled regions; choose data with masks, or settings "
            "without `segments`"
        )
    return sample.semantic.to(torch.uint8)


def _few_pixels(samples: Iterable[Sample]) -> Iterator[list[Sample]]:
    """The samples in groups: many small images form one group, large ones are released early."""
    group, pixels = [], 0
    for sample in samples:
        group.append(sample)
        pixels += sample.image.shape[1] * sample.image.shape[2]
        if pixels >= _PIXELS_AT_ONCE:
            yield group
            group, pixels = [], 0
    if group:
        yield group
