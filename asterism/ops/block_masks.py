"""Masks for masked image modelling: rectangles (BEiT, iBOT) or scattered patches, drawn from random keys.

Every image draws from its own key, so its mask does not depend on the rest of the batch. Ratios are in double
precision, so that int(ratio · patches) has its exact value. Keys and masks are on the host, because not every device
supports double precision and because each rectangle depends on those before it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Bool, Float64, Int
from pydantic import model_validator
from torch import Tensor

from asterism.config import Config
from asterism.ops import streams
from asterism.ops.random import fold_each, fold_series, uniform
from asterism.ranges import CountFromZero, Share

_TRIES = 10  # consecutive rectangles that may fail before a mask is left as it is
_LOG_ASPECT = math.log(1 / 0.3)  # of height over width, uniform between minus and plus this
_DRAWN_AHEAD = 16  # rectangles for which random numbers are drawn at once; most masks need fewer


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
        return torch.zeros(len(keys), grid[0] * grid[1], dtype=torch.bool)
    ratios = draw_ratios(fold_each(keys, streams.BlockMasks.SHARE), *config.mixture)
    draw = block_masks if config.shape == "block" else random_masks
    return draw(fold_each(keys, streams.BlockMasks.PLACES), grid, ratios)


def draw_ratios(
    keys: Int[Tensor, " b"], ratios: tuple[float, ...], spreads: tuple[float, ...]
) -> Float64[Tensor, " b"]:
    """The share to mask: one of `ratios` with equal probability, then uniform within ± its spread."""
    which, within = uniform(keys, 2).unbind(dim=1)
    index = (which * len(ratios)).to(torch.int64)
    centre, spread = (torch.tensor(values, dtype=torch.float64)[index] for values in (ratios, spreads))
    return centre + spread * (2 * within - 1)


def random_masks(keys: Int[Tensor, " b"], grid: tuple[int, int], ratios: Float64[Tensor, " b"]) -> Bool[Tensor, "b n"]:
    """Exactly int(ratio · patches) patches, anywhere."""
    height, width = grid
    rank = uniform(keys, height * width).argsort(dim=1, stable=True).argsort(dim=1)
    count = (ratios * height * width).to(torch.int64)
    return rank < count[:, None]


def block_masks(keys: Int[Tensor, " b"], grid: tuple[int, int], ratios: Float64[Tensor, " b"]) -> Bool[Tensor, "b n"]:
    """Add rectangles until ratio · patches are masked, or ten in a row did not fit.

    A rectangle's area is uniform between (shorter side // 3)² and the number of patches still missing; either may be
    the larger. A rectangle must be smaller than the grid in both directions, and add at least one patch but no more
    than are missing.
    """
    masks = [_Blocks(grid, ratio * grid[0] * grid[1]) for ratio in ratios.tolist()]
    unfinished = [image for image, mask in enumerate(masks) if not mask.is_full]
    attempt = 0
    while unfinished:
        series = fold_series(keys[unfinished], _DRAWN_AHEAD, first=attempt)
        draws = uniform(series.flatten(), 4).view(len(unfinished), _DRAWN_AHEAD, 4).tolist()
        unfinished = [
            image for image, own in zip(unfinished, draws, strict=True) if not masks[image].try_rectangles(own)
        ]
        attempt += _DRAWN_AHEAD
    return _bits([mask.patches for mask in masks], grid[0] * grid[1])


class _Blocks:
    """The mask of one image: bit i of `patches` is set if patch i, counted by rows, is masked.

    Whole numbers, because a tensor operation takes longer than everything that happens to a rectangle.
    """

    def __init__(self, grid: tuple[int, int], target: float) -> None:
        self.patches = 0
        self._height, self._width = grid
        self._target = target  # patches to mask
        self._smallest = (min(grid) // 3) ** 2  # area of a rectangle
        self._failures = 0

    @property
    def is_full(self) -> bool:
        return self.patches.bit_count() >= self._target

    def try_rectangles(self, draws: Sequence[Sequence[float]]) -> bool:
        """Try a rectangle for each row of four uniform numbers. Returns whether the mask is finished."""
        for area, aspect, down, across in draws:
            missing = self._target - self.patches.bit_count()
            area = max(0.0, self._smallest + (missing - self._smallest) * area)
            ratio = math.exp(_LOG_ASPECT * (2 * aspect - 1))  # height over width
            together = self.patches | self._rectangle(math.sqrt(area * ratio), math.sqrt(area / ratio), down, across)
            if 0 < together.bit_count() - self.patches.bit_count() <= missing:
                self.patches, self._failures = together, 0
            else:
                self._failures += 1
            if self.is_full or self._failures == _TRIES:
                return True
        return False

    def _rectangle(self, height: float, width: float, down: float, across: float) -> int:
        """The patches of a rectangle with rounded sides, placed by two numbers in [0, 1); none if it is too large."""
        rows, columns = round(height), round(width)
        if rows >= self._height or columns >= self._width:
            return 0
        top, left = int(down * (self._height - rows + 1)), int(across * (self._width - columns + 1))
        row = (1 << columns) - 1 << left
        return sum(row << self._width * (top + below) for below in range(rows))


def _bits(numbers: Sequence[int], count: int) -> Bool[Tensor, "b {count}"]:
    """The lowest `count` bits of every number."""
    size = math.ceil(count / 8)
    packed = torch.tensor([list(number.to_bytes(size, "little")) for number in numbers], dtype=torch.uint8)
    bits = packed.view(len(numbers), size, 1) >> torch.arange(8, dtype=torch.uint8) & 1
    return bits.flatten(1)[:, :count].bool()
