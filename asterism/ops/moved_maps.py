"""Maps over an image that was moved: where each cell of the new image was in the old one."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F


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
