"""Images for evaluations and embeddings: each once, in order, centre-cropped, with nothing random."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from asterism.data.loader import Loaded, Loader
from asterism.data.order import each_once
from asterism.data.sources.source import Sample, Source
from asterism.errors import UserError
from asterism.images.bad_image import BadImage
from asterism.images.centre_crop import center_square, usual_resize

Made = TypeVar("Made")


@dataclass(frozen=True)
class EvaluationBatch:
    """Readable images in the order of their source, and the unreadable ones between them."""

    images: UInt8[Tensor, "b 3 s s"]
    labels: Int[Tensor, " b"] | None  # None in a source without labels
    keys: list[str]
    index: Int[Tensor, " b"]  # position in the source
    bad: list[BadImage]


@dataclass(frozen=True)
class CenterCrops:
    """Makes a batch of images: shorter side resized to `resize` pixels, then a centre crop of `size` pixels."""

    size: int
    resize: int

    def __post_init__(self) -> None:
        if self.resize < self.size:
            raise UserError(
                f"resize = {self.resize} is smaller than the crop of {self.size}; choose at least {self.size}"
            )

    def __call__(self, samples: Iterable[Sample], keys: Sequence[int] = ()) -> UInt8[Tensor, "b 3 s s"]:
        images = [center_square(sample.image, self.size, self.resize) for sample in samples]
        return torch.stack(images) if images else torch.empty(0, 3, self.size, self.size, dtype=torch.uint8)


def evaluation_batches(
    source: Source, size: int, *, batch_size: int = 64, workers: int = 0, resize: int | None = None
) -> Iterator[EvaluationBatch]:
    """Every readable image of a source: shorter side resized to `resize` pixels, then a centre crop of `size` pixels.

    By default `resize` follows `usual_resize`. A bad image is reported in a batch near its position, so a batch may be
    smaller than `batch_size`. A batch is empty only if no image can be read at all.
    """
    crops = CenterCrops(size, usual_resize(size) if resize is None else resize)
    loader = Loader(source, crops, each_once(len(source), batch_size), workers=workers)
    return (_evaluation_batch(source, loaded) for loaded in without_empty(loader))


def without_empty(batches: Iterable[Loaded[Made]]) -> Iterator[Loaded[Made]]:
    """Move the bad images of an empty batch to the batch before it, or to the first one that is not empty."""
    waiting: Loaded[Made] | None = None
    for batch in batches:
        if waiting is None:
            waiting = batch
        elif not batch.keys or not waiting.keys:
            filled = batch if batch.keys else waiting
            waiting = replace(filled, bad=waiting.bad + batch.bad)
        else:
            yield waiting
            waiting = batch
    if waiting is not None:
        yield waiting


def labels_at(source: Source, places: Sequence[int]) -> list[int] | None:
    """The labels of some images; None in a source without labels."""
    if source.classes is None:
        return None
    labels = [source.label(place) for place in places]
    return [label for label in labels if label is not None]


def _evaluation_batch(source: Source, loaded: Loaded[Tensor]) -> EvaluationBatch:
    labels = labels_at(source, loaded.places)
    return EvaluationBatch(
        images=loaded.made,
        labels=None if labels is None else torch.tensor(labels, dtype=torch.int64),
        keys=loaded.keys,
        index=torch.tensor(loaded.places, dtype=torch.int64),
        bad=loaded.bad,
    )
