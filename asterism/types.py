"""The values passed between the parts of Asterism: frozen, without logic.

Axis names in every shape: b images, v views, n patches, r sparse tokens, d channels, h and w pixels or grid cells,
k prototypes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from asterism.config import Config
from asterism.ranges import AreaRange, CountFromZero, Hue, Level, NonNegative, Pixels, PositiveRange, Share


class ColorJitter(Config):
    """Strengths as in torchvision's ColorJitter; the four changes are applied in random order."""

    brightness: NonNegative = 0.4
    contrast: NonNegative = 0.4
    saturation: NonNegative = 0.2
    hue: Hue = 0.1
    probability: Share = 0.8


class ViewSpec(Config):
    """The specification of one view of an image. Probabilities are in [0, 1]; sizes are in pixels."""

    size: Pixels
    scale: AreaRange = (0.25, 1.0)  # area of the crop as a share of its frame
    ratio: PositiveRange = (3 / 4, 4 / 3)  # width over height
    flip: Share = 0.5
    jitter: ColorJitter | None = None
    grayscale: Share = 0.0
    blur: Share = 0.0
    blur_sigma: PositiveRange = (0.1, 2.0)
    solarize: Share = 0.0
    solarize_threshold: Level = 128
    inside: CountFromZero | None = None  # index of an earlier view whose crop is the frame, instead of the image
    same_place: CountFromZero | None = None  # index of an earlier view with the same crop and flip; colours differ
    segments: bool = False  # include the label of every pixel; the data must have masks


@dataclass(frozen=True)
class CropGeometry:
    """The crops of views, in pixels of their original images. Only `ops.geometry` interprets it."""

    top: Float[Tensor, " b"]
    left: Float[Tensor, " b"]
    height: Float[Tensor, " b"]
    width: Float[Tensor, " b"]
    image_height: Float[Tensor, " b"]
    image_width: Float[Tensor, " b"]
    flip: Bool[Tensor, " b"]


@dataclass(frozen=True)
class View:
    """One view of every image of a batch."""

    pixels: Float[Tensor, "b 3 h w"]  # normalised by the data set's mean and standard deviation
    geometry: CropGeometry
    segments: Int[Tensor, "b h w"] | None = None  # labels cropped like the pixels, −1 where unknown; if requested

    @classmethod
    def whole(cls, pixels: Float[Tensor, "b 3 h w"]) -> View:
        """A view that shows all of each image, neither cut nor flipped."""
        images, _, height, width = pixels.shape
        nowhere = pixels.new_zeros(images, dtype=torch.float32)
        tall, wide = nowhere + height, nowhere + width
        return cls(pixels, CropGeometry(nowhere, nowhere, tall, wide, tall, wide, nowhere.bool()))


@dataclass(frozen=True)
class Batch:
    """A (micro-)batch on one process; `views` follow the order of the method's view specifications."""

    views: tuple[View, ...]
    index: Int[Tensor, " b"]  # index of each image in its source
    keys: Int[Tensor, " b"]  # random key of each image, on the host: a function of (seed, epoch, index), see ops.random

    @classmethod
    def of(
        cls,
        views: Sequence[Float[Tensor, "b 3 _ _"]],
        keys: Int[Tensor, " b"],
        index: Int[Tensor, " b"] | None = None,
    ) -> Batch:
        """A batch of finished views, in the order of the method's view specifications, each taken as whole images.

        keys: any integers that differ between images and between steps; masks and dropped paths are drawn from them.
        """
        places = torch.arange(len(keys), device=views[0].device) if index is None else index
        return cls(tuple(View.whole(pixels) for pixels in views), places, keys.cpu())


@dataclass(frozen=True)
class Progress:
    """The progress of training. Every schedule and every random draw of a step is a function of it."""

    step: int  # optimiser steps finished before this one
    steps: int  # optimiser steps of the whole run; if it has minutes instead, as many as fit at its speed so far
    steps_per_epoch: int
    seed: int = 0

    @property
    def epoch(self) -> int:
        return self.step // self.steps_per_epoch

    @property
    def epochs(self) -> int:
        return math.ceil(self.steps / self.steps_per_epoch)

    @property
    def share(self) -> float:
        """Of the whole run, from 0 to 1."""
        return self.step / self.steps

    @property
    def is_over(self) -> bool:
        return self.step >= self.steps


@dataclass(frozen=True)
class Tokens:
    """The output tokens of a backbone, after its final norm."""

    cls: Float[Tensor, "b d"] | None  # None when the backbone has no class token
    patches: Float[Tensor, "b n d"]  # raster order; with `keep`, only the kept ones in the given order
    registers: Float[Tensor, "b r d"]  # latent queries without position; r may be 0
    grid: tuple[int, int]  # rows and columns of the full patch grid


@dataclass(frozen=True)
class Model:
    """The identity of an encoder: the name it was given, and how long it was trained."""

    name: str
    step: int | None = None  # optimiser steps behind its weights; None where unknown


@dataclass(frozen=True)
class Features:
    """An encoder's description of images: what is there (cls, sparse) and where (patches, where)."""

    cls: Float[Tensor, "b d"]  # the class token; the mean patch for backbones without one
    patches: Float[Tensor, "b n d"]
    grid: tuple[int, int]
    sparse: Float[Tensor, "b r d"] | None = None  # concept tokens
    where: Float[Tensor, "b r h w"] | None = None  # share of each grid cell that belongs to each concept
    aligned: Float[Tensor, "b e"] | None = None  # unit vector in the space of texts, if the encoder is aligned with one


@dataclass(frozen=True)
class Losses:
    """Named loss terms of a batch; the total is derived from them."""

    terms: Mapping[str, Float[Tensor, ""]]
    weights: Mapping[str, float] = field(default_factory=dict)  # 1 where not named
    metrics: Mapping[str, Float[Tensor, ""]] = field(default_factory=dict)  # detached diagnostics
    embeddings: Float[Tensor, "b d"] | None = None  # detached image embeddings, for spread and rank

    @property
    def total(self) -> Float[Tensor, ""]:
        return torch.stack([self.weights.get(name, 1.0) * value for name, value in self.terms.items()]).sum()
