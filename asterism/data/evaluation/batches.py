"""Images for evaluations and embeddings: each once, in order, centre-cropped, with nothing random."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from asterism.data.reading import Entry, read_batches
from asterism.data.sources.source import Source
from asterism.errors import UserError
from asterism.images.bad_image import BadImage
from asterism.images.centre_crop import center_square, usual_resize


@dataclass(frozen=True)
class EvaluationBatch:
    """Readable images in the order of their source, and the unreadable ones between them."""

    images: UInt8[Tensor, "b 3 s s"]
    labels: Int[Tensor, " b"] | None  # None in a source without labels
    keys: list[str]
    index: Int[Tensor, " b"]  # position in the source
    bad: list[BadImage] = field(default_factory=list)


def evaluation_batches(
    source: Source, size: int, *, batch_size: int = 64, workers: int = 0, resize: int | None = None
) -> Iterator[EvaluationBatch]:
    """Every readable image of a source: shorter side resized to `resize` pixels, then a centre crop of `size` pixels.

    By default `resize` follows `usual_resize`. A bad image is reported in a batch near its position, so a batch may be
    smaller than `batch_size`. A batch is empty only if no image can be read at all.
    """
    crops = CenterCrops(source, size, usual_resize(size) if resize is None else resize)
    return _without_empty(read_batches(source, crops, batch_size=batch_size, workers=workers))


@dataclass(frozen=True)
class CenterCrops:
    """Makes a batch of images: shorter side resized to `resize` pixels, then a centre crop of `size` pixels."""

    source: Source
    size: int
    resize: int

    def __post_init__(self) -> None:
        if self.resize < self.size:
            raise UserError(
                f"resize = {self.resize} is smaller than the crop of {self.size}; choose at least {self.size}"
            )

    def __call__(self, entries: Iterator[Entry]) -> EvaluationBatch:
        images, keys, index, bad = [], [], [], []
        for place, found in entries:
            if isinstance(found, BadImage):
                bad.append(found)
                continue
            images.append(center_square(found.image, self.size, self.resize))
            keys.append(found.key)
            index.append(place)
        return EvaluationBatch(
            images=torch.stack(images) if images else torch.empty(0, 3, self.size, self.size, dtype=torch.uint8),
            labels=self._labels(index),
            keys=keys,
            index=torch.tensor(index, dtype=torch.int64),
            bad=bad,
        )

    def _labels(self, index: list[int]) -> Tensor | None:
        if self.source.classes is None:
            return None
        return torch.tensor([self.source.label(place) for place in index], dtype=torch.int64)


def _without_empty(batches: Iterator[EvaluationBatch]) -> Iterator[EvaluationBatch]:
    """Move the bad images of an empty batch to the batch before it, or to the first one that is not empty."""
    waiting: EvaluationBatch | None = None
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
