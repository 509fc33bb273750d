"""Training images: scaled, cropped, flipped and recoloured at random, with masks that follow the pixels exactly.

Every number is drawn from the image's key. The order is mmsegmentation's: resize, crop, flip, colours, normalise, and
fill what lies outside the image with the mean colour and the label void.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Integer, UInt8
from torch import Tensor

from asterism.config import Config
from asterism.data import Sample
from asterism.data.views.crop import interleaved
from asterism.errors import UserError
from asterism.finetuning.segmentation import photometric
from asterism.finetuning.task import TaskBatch
from asterism.images.masks import VOID
from asterism.ops import streams
from asterism.ops.normalise import Triple, normalise
from asterism.ops.propagation import resize_labels
from asterism.ops.random import fold, uniform
from asterism.ranges import PositiveRange, PositiveShare, Share

MOST_ELONGATED = 4  # longer over shorter side after resizing; images that are longer still become smaller

_TRIES = 10
# Numbers in a fixed order, so that no draw depends on the outcome of another.
_SCALE, _FLIP, _TOP = 0, 1, 2
_LEFT = _TOP + _TRIES
_COLOURS = _LEFT + _TRIES
_DRAWS = _COLOURS + photometric.DRAWS


class SegmentAugmentationConfig(Config):
    """The defaults are those of mmsegmentation, which the papers use. Probabilities are in [0, 1]."""

    scale: PositiveRange = (0.5, 2.0)  # of an image whose shorter side is `task.side`
    flip: Share = 0.5
    photometric: bool = True  # brightness, contrast, saturation and hue
    largest_class: PositiveShare = 0.75  # a crop with a larger share of one class is drawn again, up to ten times


@dataclass(frozen=True)
class SegmentSamples:
    """Makes batches of square crops with a label for every pixel."""

    config: SegmentAugmentationConfig
    size: int  # pixels per side of a crop
    side: int  # pixels of the shorter side of an image at scale 1
    mean: Triple
    std: Triple

    def __call__(self, samples: Iterable[Sample], keys: Sequence[int]) -> TaskBatch:
        made = [self._made(sample, key) for sample, key in zip(samples, keys, strict=True)]
        images, masks = (torch.stack(parts) for parts in zip(*made, strict=True))
        return TaskBatch(images, (masks,), torch.tensor(list(keys)))

    def _made(self, sample: Sample, key: int) -> tuple[Float[Tensor, "3 s s"], UInt8[Tensor, "s s"]]:
        if sample.semantic is None:
            raise UserError(f"{sample.key} has no mask; segmentation needs one per image")
        draws = uniform(torch.tensor([fold(key, streams.Segmentation.AUGMENTATION)]), _DRAWS)[0].tolist()
        low, high = self.config.scale
        scale = low + (high - low) * draws[_SCALE]
        size = resized(sample.image.shape[1], sample.image.shape[2], scale * self.side)
        labels = resize_labels(sample.semantic.to(torch.uint8), size)
        top, left = self._place(labels, draws)
        image = resize(sample.image, size)[:, top : top + self.size, left : left + self.size]
        mask = labels[top : top + self.size, left : left + self.size]
        if draws[_FLIP] < self.config.flip:
            image, mask = image.flip(2), mask.flip(1)
        if self.config.photometric:
            image = photometric.distorted(image, draws[_COLOURS:])
        margin = (0, self.size - image.shape[2], 0, self.size - image.shape[1])
        pixels = F.pad(normalise(image, self.mean, self.std), margin)
        return pixels, F.pad(mask, margin, value=VOID)

    def _place(self, labels: Integer[Tensor, "h w"], draws: Sequence[float]) -> tuple[int, int]:
        """The corner of the first drawn crop that is not nearly all of one class; of the last one if all are."""
        rows, columns = (max(0, side - self.size) for side in labels.shape)
        places = [
            (int(draws[_TOP + number] * (rows + 1)), int(draws[_LEFT + number] * (columns + 1)))
            for number in range(_TRIES)
        ]
        if self.config.largest_class == 1:
            return places[0]
        for top, left in places:
            crop = labels[top : top + self.size, left : left + self.size]
            counts = torch.bincount(crop.reshape(-1), minlength=VOID + 1)[:VOID]
            # Two classes at least: a crop without any label is as useless as one of a single class.
            if int((counts > 0).sum()) > 1 and int(counts.max()) < self.config.largest_class * int(counts.sum()):
                return top, left
        return places[-1]


def resized(height: int, width: int, shorter: float) -> tuple[int, int]:
    """The size with this shorter side and the same aspect ratio; the longer side is at most four times as long."""
    scale = min(shorter / min(height, width), MOST_ELONGATED * shorter / max(height, width))
    return max(1, round(height * scale)), max(1, round(width * scale))


def resize(image: UInt8[Tensor, "3 h w"], size: tuple[int, int]) -> UInt8[Tensor, "3 i j"]:
    """Bilinear, without aliasing."""
    if tuple(image.shape[1:]) == size:
        return image
    return F.interpolate(interleaved(image[None]), size, mode="bilinear", antialias=True)[0]
