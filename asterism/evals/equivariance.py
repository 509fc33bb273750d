"""Concepts of transformed images: whether *what* is invariant and *where* equivariant under shift, mirror and zoom.

STELLAR's claim: concepts S are invariant, their maps L equivariant. Concepts of the image and of the transformed image
are matched one to one by cosine similarity. `concepts_*` is the mean cosine of the pairs in percent, `concepts_other`
that of two different images. `where_*` is the share of a cell that both maps assign to the same concepts, after the
first map was transformed like the image; `where_*_still` is the same for the original map, which maps tied to the frame
instead of to objects would reach. Nothing is trained, and no labels are needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor
from torch.nn import functional as F

from asterism.data.parts import DataChoice, Parts, open_untrained
from asterism.errors import UserError
from asterism.evals.base import Evaluation, ProtocolConfig
from asterism.evals.baselines import concept_baselines
from asterism.evals.settings import first_images
from asterism.nn.encoder import Encoder
from asterism.ops.assignment import hungarian
from asterism.ranges import CountFromTwo, Few, Zoom
from asterism.types import Features

_MOVES = ("shift", "mirror", "zoom")


class EquivarianceConfig(ProtocolConfig):
    """How far images are moved."""

    cells: Few = 2  # patches by which the window is shifted, down and right
    zoom: Zoom = 2.0
    images: CountFromTwo | None = 500  # number of images, from the first; None: all
    batch_size: CountFromTwo = 64  # images at a time; changes which other image `concepts_other` compares with


@dataclass(frozen=True)
class _Moved:
    """Transformed images and their transformation."""

    pixels: UInt8[Tensor, "b 3 s s"]
    motion: Motion


class Equivariance(Evaluation):
    """Agreement of concepts and of their maps for every transformation, in percent."""

    Config = EquivarianceConfig
    config: EquivarianceConfig

    @classmethod
    def open_parts(cls, config: ProtocolConfig, choice: DataChoice) -> Parts:
        return open_untrained(choice)

    @classmethod
    def value_names(cls, config: ProtocolConfig) -> list[str]:
        kinds = [f"{kind}_{move}" for kind in ("concepts", "where") for move in _MOVES]
        return [*kinds, *(f"where_{move}_still" for move in _MOVES), "concepts_other", "images"]

    def measure(self, encoder: Encoder) -> Iterator[tuple[str, float]]:
        sums: dict[str, float] = {}
        patch, seen = encoder.patch_size, 0
        large = encoder.image_size + self.config.cells * patch
        source = self.parts.test
        for images in first_images("equivariance", source, large, large, self.config.images, self.config):
            for name, values in self._compared(encoder, images, self.config.cells * patch).items():
                sums[name] = sums.get(name, 0.0) + float(values.double().sum())
            seen += len(images)
        if not seen:
            raise UserError(f"{source.name} has no readable images")
        yield from ((name, 100 * value / seen) for name, value in sums.items())
        yield "images", float(seen)

    def baselines(self, encoder: Encoder) -> dict[str, Encoder]:
        return concept_baselines(encoder)

    def constants(self, encoder: Encoder) -> dict[str, Any]:
        return super().constants(encoder) | {
            "crop": encoder.image_size,
            "shift": self.config.cells * encoder.patch_size,
        }

    def _compared(self, encoder: Encoder, large: UInt8[Tensor, "b 3 l l"], step: int) -> dict[str, Float[Tensor, " b"]]:
        """Every value for each image of a batch; `step` is the shift in pixels."""
        size = encoder.image_size
        first = large[..., :size, :size]
        still, where = _concepts(encoder.encode(first))
        values: dict[str, Tensor] = {}
        for name, each in self._moves(large, first, step).items():
            concepts, maps = _concepts(encoder.encode(each.pixels))
            cosine, partner = matched(still, concepts)
            maps = maps.gather(1, partner[..., None, None].expand_as(maps))
            expected, counted = moved(where, each.motion)
            values[f"concepts_{name}"] = cosine
            values[f"where_{name}"] = overlap(expected, maps, counted)
            values[f"where_{name}_still"] = overlap(where, maps, counted)
        values["concepts_other"] = matched(still, still.roll(1, dims=0))[0]
        return values

    def _moves(self, large: UInt8[Tensor, "b 3 l l"], first: UInt8[Tensor, "b 3 s s"], step: int) -> dict[str, _Moved]:
        size = first.shape[-1]
        inner = round(size / self.config.zoom)
        edge = (size - inner) // 2
        middle = first[..., edge : edge + inner, edge : edge + inner]
        enlarged = F.interpolate(middle, (size, size), mode="bicubic", antialias=True)
        return {
            "shift": _Moved(large[..., step:, step:], shift(step / size, step / size)),
            "mirror": _Moved(first.flip(-1), MIRROR),
            "zoom": _Moved(enlarged, zoom(size / inner)),
        }


def matched(first: Float[Tensor, "b r d"], second: Float[Tensor, "b r d"]) -> tuple[Float[Tensor, " b"], Tensor]:
    """Mean cosine of the best one-to-one matching, and the partner in `second` of each concept in `first`."""
    cosine = F.normalize(first.float(), dim=-1) @ F.normalize(second.float(), dim=-1).mT
    partner = hungarian(-cosine)
    return cosine.gather(2, partner[..., None])[..., 0].mean(1), partner


def _concepts(features: Features) -> tuple[Float[Tensor, "b r d"], Float[Tensor, "b r h w"]]:
    if features.sparse is None or features.where is None:
        raise UserError("this encoder has no concepts; evaluate a run of stellar, or a STELLAR checkpoint")
    return features.sparse.float(), features.where.float()


@dataclass(frozen=True)
class Motion:
    """old = scale · new + shift for each axis; coordinates go from −1 to 1 over the image."""

    down_scale: float = 1.0
    right_scale: float = 1.0
    down_shift: float = 0.0
    right_shift: float = 0.0


MIRROR = Motion(right_scale=-1.0)


def zoom(factor: float) -> Motion:
    """The middle of the old image fills the new one; `factor` is above 1."""
    return Motion(down_scale=1 / factor, right_scale=1 / factor)


def shift(down: float, right: float) -> Motion:
    """The window moves by these shares of its side."""
    return Motion(down_shift=2 * down, right_shift=2 * right)


def moved(maps: Float[Tensor, "b r h w"], motion: Motion) -> tuple[Float[Tensor, "b r h w"], Bool[Tensor, "h w"]]:
    """The old maps at the cells of the new image (bilinear), and which of these cells the old image showed."""
    height, width = maps.shape[2:]
    down = motion.down_scale * _centers(height, maps) + motion.down_shift
    right = motion.right_scale * _centers(width, maps) + motion.right_shift
    grid = torch.stack(torch.meshgrid(down, right, indexing="ij")[::-1], dim=-1)
    found = F.grid_sample(
        maps, grid.expand(len(maps), -1, -1, -1), mode="bilinear", padding_mode="border", align_corners=False
    )
    return found, (down.abs() < 1)[:, None] & (right.abs() < 1)


def overlap(
    first: Float[Tensor, "b r h w"], second: Float[Tensor, "b r h w"], counted: Bool[Tensor, "h w"]
) -> Float[Tensor, " b"]:
    """What two distributions over r share in a cell, 1 − ½ Σ|p − q|, mean over the counted cells."""
    return (1 - (first - second).abs().sum(1) / 2)[:, counted].mean(1)


def _centers(cells: int, like: Tensor) -> Float[Tensor, " n"]:
    return (2 * torch.arange(cells, device=like.device, dtype=like.dtype) + 1) / cells - 1
