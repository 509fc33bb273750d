"""Predictions for images of any size: square windows slide over the image, and their logits are averaged.

The windows and their order are mmsegmentation's. Windows of one size share a forward pass, also those of different
images, so small images are as fast as a batch; only the logits of the images at work are in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor

from asterism.ops.propagation import largest_upsampled

LogitsOf = Callable[[Float[Tensor, "b 3 h w"]], Float[Tensor, "b c _ _"]]

_PIXELS_AT_ONCE = 1 << 22  # of windows in a forward pass: 16 of 512 pixels


@dataclass(frozen=True)
class Prepared:
    """An image as the network takes it, with the sizes before and after the margin was added."""

    pixels: Float[Tensor, "3 h w"]  # normalised, with a margin below and on the right
    inner: tuple[int, int]  # without the margin
    original: tuple[int, int]  # of the prediction


@dataclass(frozen=True)
class _Window:
    image: int
    top: int
    left: int
    pixels: Float[Tensor, "3 h w"]
    is_last: bool  # of its image


def label_maps(
    images: Iterable[Prepared], logits_of: LogitsOf, window: int | None, stride: int
) -> Iterator[UInt8[Tensor, "_ _"]]:
    """The most probable class of every pixel, image by image, on the CPU.

    window: pixels per side; None: the whole image. stride: from one window to the next.
    """
    sums: dict[int, _Sum] = {}
    for batch in _batches(_windows(images, window, stride, sums)):
        pixels = torch.stack([each.pixels for each in batch])
        size = (pixels.shape[2], pixels.shape[3])
        logits = F.interpolate(logits_of(pixels).float(), size, mode="bilinear", align_corners=False)
        for each, values in zip(batch, logits, strict=True):
            sums[each.image].add(each, values)
            if each.is_last:
                yield sums.pop(each.image).labels().cpu()


def starts(length: int, window: int, stride: int) -> list[int]:
    """Where windows begin along one side: every `stride` pixels, and the last one ends with the image."""
    last = max(0, length - window)
    count = -(-last // stride) + 1
    return [min(number * stride, last) for number in range(count)]


class _Sum:
    """The logits of an image's windows, added up."""

    def __init__(self, image: Prepared) -> None:
        self._image = image
        self._total: Tensor | None = None
        self._windows = image.pixels.new_zeros(image.pixels.shape[1:], dtype=torch.float32)

    def add(self, window: _Window, logits: Float[Tensor, "c h w"]) -> None:
        if self._total is None:
            self._total = logits.new_zeros(len(logits), *self._image.pixels.shape[1:])
        _, height, width = logits.shape
        rows, columns = slice(window.top, window.top + height), slice(window.left, window.left + width)
        self._total[:, rows, columns] += logits
        self._windows[rows, columns] += 1

    def labels(self) -> UInt8[Tensor, "_ _"]:
        assert self._total is not None
        height, width = self._image.inner
        mean = (self._total / self._windows)[:, :height, :width]
        return largest_upsampled(mean, self._image.original)


def _windows(images: Iterable[Prepared], window: int | None, stride: int, sums: dict[int, _Sum]) -> Iterator[_Window]:
    for number, image in enumerate(images):
        sums[number] = _Sum(image)
        places = cuts(image, window, stride)
        for place, (rows, columns) in enumerate(places):
            cut = image.pixels[:, rows, columns]
            yield _Window(number, rows.start, columns.start, cut, place == len(places) - 1)


def cuts(image: Prepared, window: int | None, stride: int) -> list[tuple[slice, slice]]:
    """Rows and columns of the windows of an image."""
    height, width = image.pixels.shape[1:]
    tall, wide = (height, width) if window is None else (min(window, height), min(window, width))
    return [
        (slice(top, top + tall), slice(left, left + wide))
        for top in starts(height, tall, stride)
        for left in starts(width, wide, stride)
    ]


def _batches(windows: Iterable[_Window]) -> Iterator[Sequence[_Window]]:
    """Consecutive windows of one size, as many as fit into a forward pass."""
    batch: list[_Window] = []
    for each in windows:
        full = batch and (len(batch) + 1) * each.pixels[0].numel() > _PIXELS_AT_ONCE
        if batch and (full or batch[0].pixels.shape != each.pixels.shape):
            yield batch
            batch = []
        batch.append(each)
    if batch:
        yield batch
