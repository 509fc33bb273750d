"""Images for evaluations and embeddings: each once, in order, cut from the middle, without chance."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Int, UInt8
from torch import Tensor
from torch.utils.data import Dataset

from asterism.data.sources.source import Source
from asterism.data.workers import prepare
from asterism.errors import UserError
from asterism.images.bad_image import BadImage
from asterism.images.square import center_square, usual_resize


@dataclass(frozen=True)
class EvaluationBatch:
    """Readable images in the order of their source, and the unreadable ones among them."""

    images: UInt8[Tensor, "b 3 s s"]
    labels: Int[Tensor, " b"] | None  # None in a source without labels
    keys: list[str]
    index: Int[Tensor, " b"]  # place in the source
    bad: list[BadImage] = field(default_factory=list)


def evaluation_batches(
    source: Source, size: int, *, batch_size: int = 64, workers: int = 0, resize: int | None = None
) -> Iterator[EvaluationBatch]:
    """Every readable image of a source: shorter side resized to `resize` pixels, middle square of `size` pixels.

    By default `resize` follows `usual_resize`. Bad images are named by a batch near them, so a batch may be smaller
    than `batch_size`; it is empty only if no image can be read at all.
    """
    resize = usual_resize(size) if resize is None else resize
    if resize < size:
        raise UserError(f"resize = {resize} is smaller than the crop of {size}; give at least {size}")
    requests = [range(start, min(start + batch_size, len(source))) for start in range(0, len(source), batch_size)]
    tasks = _Batches(source, size, resize)
    batches = prepare(tasks, requests, workers=workers, prefetch=2, pin_memory=False)
    return _without_empty(batches)


class _Batches(Dataset[EvaluationBatch | UserError]):
    def __init__(self, source: Source, size: int, resize: int) -> None:
        self._source = source
        self._size = size
        self._resize = resize

    def __getitem__(self, places: range) -> EvaluationBatch:
        images, keys, index, bad = [], [], [], []
        for place in places:
            try:
                sample = self._source[place]
            except BadImage as error:
                bad.append(error)
                continue
            images.append(center_square(sample.image, self._size, self._resize))
            keys.append(sample.key)
            index.append(place)
        return EvaluationBatch(
            images=torch.stack(images) if images else torch.empty(0, 3, self._size, self._size, dtype=torch.uint8),
            labels=self._labels(index),
            keys=keys,
            index=torch.tensor(index, dtype=torch.int64),
            bad=bad,
        )

    def _labels(self, index: list[int]) -> Tensor | None:
        if self._source.classes is None:
            return None
        return torch.tensor([self._source.label(place) for place in index], dtype=torch.int64)


def _without_empty(batches: Iterator[EvaluationBatch]) -> Iterator[EvaluationBatch]:
    """Pass on the bad images of an empty batch with the batch before it, or with the first that is not empty."""
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
