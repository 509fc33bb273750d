"""Masks for masked image modelling: rectangles (BEiT, iBOT) or scattered patches, drawn from random keys.

Every image draws from its own key, so its mask does not depend on the rest of the batch. Ratios are in double
precision, so that int(ratio · patches) has its exact value. Masks are drawn on the CPU, because not every device
supports double precision and because the loop over rectangles depends on its own result.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from jaxtyping import Bool, Float64, Int
from pydantic import model_validator
from torch import Tensor

from asterism.config import Config
from asterism.ops.random import fold_each, uniform
from asterism.ranges import CountFromZero, Share

_TRIES = 10  # consecutive rectangles that may fail before a mask is left as it is
_ASPECT = (0.3, 1 / 0.3)  # height over width, uniform in the logarithm


class MaskConfig(Config):
    """Which patches of the student's large views are masked. Ratios are shares of an image's patches."""

    shape: Literal["block", "random"] = "block"
    ratios: tuple[Share, ...] | None = None  # one is drawn per view; None: (0, 0.3) for blocks, 0.7 for random patches
    spreads: tuple[Share, ...] | None = None  # drawn ratios vary by ± this; None: (0, 0.2) for blocks, 0 for random
    start_epoch: CountFromZero = 0  # nothing is masked before it; 50 in iBOT's Swin run

    @model_validator(mode="after")
    def _ranges_are_shares(self) -> MaskConfig:
        ratios, spreads = self.mixture
        if not ratios:
            raise ValueError("ratios is empty; give at least one share of an image's patches, or omit the setting")
        if len(ratios) != len(spreads):
            raise ValueError(f"{len(ratios)} ratios and {len(spreads)} spreads; give one spread for each ratio")
        for ratio, spread in zip(ratios, spreads, strict=True):
            if not 0 <= ratio - spread <= ratio + spread <= 1:
                raise ValueError(f"a ratio of {ratio} ± {spread} is outside [0, 1]; give shares of an image's patches")
        return self

    @property
    def mixture(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Ratios and spreads with their defaults; a given ratio without a spread does not vary."""
        usual = {"block": ((0.0, 0.3), (0.0, 0.2)), "random": ((0.7,), (0.0,))}[self.shape]
        ratios = usual[0] if self.ratios is None else self.ratios
        fixed = usual[1] if self.ratios is None else (0.0,) * len(ratios)
        return ratios, fixed if self.spreads is None else self.spreads


def draw_masks(
    config: MaskConfig, keys: Int[Tensor, " b"], grid: tuple[int, int], epoch: int = 0
) -> Bool[Tensor, "b n"]:
    """True where a patch is masked.

    >>> masks = draw_masks(MaskConfig(shape="random", ratios=(0.5,)), keys=torch.arange(3), grid=(4, 4))
    >>> masks.sum(dim=1).tolist()
    [8, 8, 8]
    """
    if epoch < config.start_epoch:
        return torch.zeros(len(keys), grid[0] * grid[1], dtype=torch.bool, device=keys.device)
    ratios = draw_ratios(fold_each(keys, 1), *config.mixture)
    draw = block_masks if config.shape == "block" else random_masks
    return draw(fold_each(keys, 2), grid, ratios)


def draw_ratios(
    keys: Int[Tensor, " b"], ratios: tuple[float, ...], spreads: tuple[float, ...]
) -> Float64[Tensor, " b"]:
    """The share to mask: one of `ratios` with equal probability, then uniform within ± its spread."""
    which, within = uniform(keys.cpu(), 2).unbind(dim=1)
    index = (which * len(ratios)).to(torch.int64)
    centre, spread = (torch.tensor(values, dtype=torch.float64)[index] for values in (ratios, spreads))
    return centre + spread * (2 * within - 1)


def random_masks(keys: Int[Tensor, " b"], grid: tuple[int, int], ratios: Float64[Tensor, " b"]) -> Bool[Tensor, "b n"]:
    """Exactly int(ratio · patches) patches, anywhere."""
    height, width = grid
    rank = uniform(keys.cpu(), height * width).argsort(dim=1, stable=True).argsort(dim=1)
    count = (ratios * height * width).to(torch.int64)
    return (rank < count[:, None]).to(keys.device)


def block_masks(keys: Int[Tensor, " b"], grid: tuple[int, int], ratios: Float64[Tensor, " b"]) -> Bool[Tensor, "b n"]:
    """Add rectangles until ratio · patches are masked, or ten in a row did not fit.

    A rectangle's area is uniform between (shorter side // 3)² and the number of patches still missing; either may be
    the larger. A rectangle must be smaller than the grid in both directions, and add at least one patch but no more
    than are missing.
    """
    device, keys = keys.device, keys.cpu()
    height, width = grid
    target = ratios * height * width
    mask = torch.zeros(len(keys), height, width, dtype=torch.bool)
    failures = torch.zeros(len(keys), dtype=torch.int64)
    row, column = torch.arange(height)[:, None], torch.arange(width)
    attempt = 0
    while (active := (mask.sum(dim=(1, 2)) < target) & (failures < _TRIES)).any():
        missing = target - mask.sum(dim=(1, 2))
        top, left, bottom, right = _rectangles(fold_each(keys, attempt), grid, missing).T[..., None, None]
        inside = (row >= top) & (row < bottom) & (column >= left) & (column < right)
        fits = ((bottom - top < height) & (right - left < width)).flatten()
        added = (inside & ~mask).sum(dim=(1, 2))
        good = active & fits & (added > 0) & (added <= missing)
        mask |= inside & good[:, None, None]
        failures = torch.where(good, 0, failures + 1)
        attempt += 1
    return mask.flatten(1).to(device)


def _rectangles(keys: Int[Tensor, " b"], grid: tuple[int, int], missing: Float64[Tensor, " b"]) -> Int[Tensor, "b 4"]:
    """Top, left, bottom, right of one rectangle per image; those larger than the grid start at its corner."""
    area, aspect, down, across = uniform(keys, 4).unbind(dim=1)
    smallest = (min(grid) // 3) ** 2
    area = (smallest + (missing - smallest) * area).clamp_min(0)
    aspect = torch.exp(math.log(_ASPECT[0]) + math.log(_ASPECT[1] / _ASPECT[0]) * aspect)
    sides = torch.stack([(area * aspect).sqrt(), (area / aspect).sqrt()], dim=1).round().to(torch.int64)
    room = (torch.tensor(grid) - sides + 1).clamp_min(1)
    start = (torch.stack([down, across], dim=1) * room).to(torch.int64)
    return torch.cat([start, start + sides], dim=1)
