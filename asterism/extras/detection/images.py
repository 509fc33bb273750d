"""Training images with their boxes and masks: cut, resized, flipped and padded together, each by its random key.

Every image is padded to the same canvas, to the right and below. So what the network computes for an image does not
depend on the other images of its batch, nor on how images are distributed over processes, and learned positions have
the same meaning in training and tests.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, UInt8
from pydantic import Field
from torch import Tensor

from asterism.config import Config
from asterism.data import Sample
from asterism.extras.detection.sources.run_lengths import decode
from asterism.extras.detection.sources.source import Objects, SampleWithObjects
from asterism.finetuning.task import TaskBatch
from asterism.ops import streams
from asterism.ops.normalise import Triple, normalise
from asterism.ops.random import fold, uniform
from asterism.ranges import NonNegative, Pixels, PositiveRange, Share

_USUAL_SOURCE = range(192, 384)  # pixels: sizes that networks are pretrained with, on which objects would be too small
_USUAL_CANVAS = 640
_LEAST_VISIBLE = 0.1  # share of a box: an object of which a crop shows less is left out


class SizesConfig(Config):
    """How images are brought to the size of the network's input."""

    canvas: tuple[Pixels, Pixels] | None = None  # height, width; None: 640² for sources of 192 … 383 px, else as source
    shorter: tuple[Pixels, ...] = Field(default=(), max_length=100)  # sides to draw from; the largest in tests;
    # (): the image fills the canvas
    jitter: PositiveRange | None = None  # large-scale jitter: the canvas times this factor, then cut or padded
    crop: Share = 0.0  # probability of cutting out a part before resizing, as in DETR
    crop_sides: tuple[Pixels, Pixels] = (384, 600)  # of such a part: shortest and longest side, in pixels
    crop_shorter: tuple[Pixels, ...] = Field(default=(400, 500, 600), min_length=1, max_length=100)  # resized to before
    flip: Share = 0.5
    brightness: NonNegative = 0.0  # factors are drawn from [1 - b, 1 + b]


def resolved_canvas(config: SizesConfig, image_size: int, stride: int) -> tuple[int, int]:
    """Height and width of the network's input, multiples of the stride."""
    usual = _USUAL_CANVAS if image_size in _USUAL_SOURCE else image_size
    height, width = config.canvas or (usual, usual)
    return math.ceil(height / stride) * stride, math.ceil(width / stride) * stride


def fitted(size: tuple[int, int], canvas: tuple[int, int], shorter: int | None) -> tuple[int, int]:
    """Height and width after resizing: as large as the canvas allows, with the shorter side at most `shorter`."""
    scale = min(side / own for side, own in zip(canvas, size, strict=True))
    if shorter is not None:
        scale = min(scale, shorter / min(size))
    height, width = (min(most, max(1, round(scale * side))) for side, most in zip(size, canvas, strict=True))
    return height, width


@dataclass(frozen=True)
class Labelled:
    """An image with its objects as tensors; masks are None if they are not needed."""

    image: UInt8[Tensor, "3 h w"]
    boxes: Float[Tensor, "m 4"]
    labels: Int[Tensor, " m"]
    masks: Bool[Tensor, "m h w"] | None


@dataclass(frozen=True)
class ObjectImages:
    """Makes training batches; the draws of an image depend on its key alone."""

    config: SizesConfig
    canvas: tuple[int, int]
    mean: Triple
    std: Triple
    masks: bool

    def __call__(self, samples: Iterable[Sample], keys: Sequence[int]) -> TaskBatch:
        images, truths = [], []
        for sample, key in zip(samples, keys, strict=True):
            assert isinstance(sample, SampleWithObjects)
            made = self.augmented(learnable(sample, self.masks), key)
            images.append(padded(normalise(made.image, self.mean, self.std), self.canvas))
            size = (made.image.shape[1], made.image.shape[2])
            truth: dict[str, Any] = {"boxes": made.boxes, "labels": made.labels, "size": size}
            if made.masks is not None:
                truth["masks"] = padded(made.masks.to(torch.uint8), self.canvas)
            truths.append(truth)
        return TaskBatch(torch.stack(images), tuple(truths), torch.tensor(list(keys)))

    def augmented(self, found: Labelled, key: int) -> Labelled:
        config = self.config
        draws = uniform(torch.tensor([fold(key, streams.Detection.AUGMENTATION)]), 10)[0].tolist()
        if draws[0] < config.crop:
            found = _detr_crop(found, config, draws[1:6])
        size = (found.image.shape[1], found.image.shape[2])
        if config.jitter is not None:
            low, high = config.jitter
            factor = low + draws[6] * (high - low)
            height, width = (max(1, round(factor * side)) for side in self.canvas)
            found = resized(found, fitted(size, (height, width), None))
            found = _cut_to(found, self.canvas, draws[7], draws[8])
        else:
            shorter = _drawn(config.shorter, draws[7]) if config.shorter else None
            found = resized(found, fitted(size, self.canvas, shorter))
        if config.brightness:
            factor = 1 + config.brightness * (2 * draws[8] - 1)
            found = Labelled(_brightened(found.image, factor), found.boxes, found.labels, found.masks)
        return flipped(found) if draws[9] < config.flip else found


def learnable(sample: SampleWithObjects, masks: bool) -> Labelled:
    """The objects without crowds, whose boxes hold many objects."""
    objects: Objects = sample.objects
    keep = ~objects.crowd
    pixels = None
    if masks:
        assert objects.masks is not None
        chosen = [mask for mask, kept in zip(objects.masks, keep.tolist(), strict=True) if kept]
        pixels = decode(chosen, (sample.image.shape[1], sample.image.shape[2]))
    return Labelled(sample.image, objects.boxes[keep], objects.labels[keep], pixels)


def resized(found: Labelled, size: tuple[int, int]) -> Labelled:
    """The image (bilinear, antialiased) and its objects at another size; masks take the nearest pixel."""
    before = (found.image.shape[1], found.image.shape[2])
    if before == size:
        return found
    image = F.interpolate(found.image[None], size, mode="bilinear", antialias=True)[0]
    scale = torch.tensor([size[1] / before[1], size[0] / before[0]]).repeat(2)
    masks = found.masks
    if masks is not None:
        masks = masks.new_zeros(0, *size) if not len(masks) else _nearest(masks, size)
    return Labelled(image, found.boxes * scale, found.labels, masks)


def flipped(found: Labelled) -> Labelled:
    """Left and right exchanged."""
    width = found.image.shape[2]
    left, top, right, bottom = found.boxes.unbind(dim=1)
    boxes = torch.stack([width - right, top, width - left, bottom], dim=1)
    return Labelled(found.image.flip(2), boxes, found.labels, None if found.masks is None else found.masks.flip(2))


def cropped(found: Labelled, top: int, left: int, height: int, width: int) -> Labelled:
    """A part of the image; objects of which almost nothing remains are left out."""
    image = found.image[:, top : top + height, left : left + width]
    offset = torch.tensor([left, top], dtype=found.boxes.dtype).repeat(2)
    most = torch.tensor([image.shape[2], image.shape[1]], dtype=found.boxes.dtype).repeat(2)
    boxes = torch.minimum((found.boxes - offset).clamp_min(0), most)
    before, after = ((each[:, 2:] - each[:, :2]).clamp_min(0).prod(dim=1) for each in (found.boxes, boxes))
    keep = after > _LEAST_VISIBLE * before
    masks = found.masks
    if masks is not None:
        masks = masks[:, top : top + height, left : left + width]
        keep &= masks.flatten(1).any(dim=1)
        masks = masks[keep]
    return Labelled(image, boxes[keep], found.labels[keep], masks)


def padded(maps: Tensor, canvas: tuple[int, int]) -> Tensor:
    """Zeros to the right and below, up to the size of the canvas."""
    return F.pad(maps, (0, canvas[1] - maps.shape[2], 0, canvas[0] - maps.shape[1]))


def _detr_crop(found: Labelled, config: SizesConfig, draws: Sequence[float]) -> Labelled:
    """DETR: the shorter side to one of a few lengths, then a random part."""
    image = found.image
    shorter = _drawn(config.crop_shorter, draws[0])
    scale = shorter / min(image.shape[1:])
    found = resized(found, (round(scale * image.shape[1]), round(scale * image.shape[2])))
    least, most = config.crop_sides
    height, width = (
        min(side, least + int(draw * (max(least, min(side, most)) - least + 1)))
        for side, draw in zip(found.image.shape[1:], draws[1:3], strict=True)
    )
    top = int(draws[3] * (found.image.shape[1] - height + 1))
    left = int(draws[4] * (found.image.shape[2] - width + 1))
    return cropped(found, top, left, height, width)


def _cut_to(found: Labelled, canvas: tuple[int, int], down: float, across: float) -> Labelled:
    """A random part of the size of the canvas, where the image is larger than that."""
    height, width = found.image.shape[1:]
    if height <= canvas[0] and width <= canvas[1]:
        return found
    rows, columns = min(height, canvas[0]), min(width, canvas[1])
    return cropped(found, int(down * (height - rows + 1)), int(across * (width - columns + 1)), rows, columns)


def _nearest(masks: Bool[Tensor, "m h w"], size: tuple[int, int]) -> Bool[Tensor, "m _ _"]:
    return F.interpolate(masks[None].to(torch.uint8), size, mode="nearest-exact")[0].bool()


def _brightened(image: UInt8[Tensor, "3 h w"], factor: float) -> UInt8[Tensor, "3 h w"]:
    return (image.float() * factor).round().clamp(0, 255).to(torch.uint8)


def _drawn(choices: Sequence[int], draw: float) -> int:
    return choices[min(len(choices) - 1, int(draw * len(choices)))]
