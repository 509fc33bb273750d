"""Periodic noise, made once: clouds and grain, and coarser copies so that small pictures do not alias."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Literal, TypeAlias

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from asterism.data.sources.scenes.lookup import Frame, bilinear

TileName: TypeAlias = Literal["clouds", "grain"]

SIDE = 256  # points per side of a tile, which stands for the unit square
_COARSEST = 4  # times that the coarsest copy is halved
_SEED = 7


def noise(name: TileName, frame: Frame, step: float) -> Float[np.ndarray, "h w"]:
    """The tile, repeated over the plane, at points `step` apart; the block must be less than one tile wide and high."""
    level = min(int(math.log2(max(1.0, step * SIDE))), _COARSEST)
    table = _pyramid(name)[level]
    side = table.shape[-1] // 2
    # Halving moves point 0 to the middle of the points it stands for.
    shift = (1 - 0.5**level) / (2 * side)
    x, y = frame.least()
    # The table holds the tile twice in each direction: place u of [0, 2) lies at 2 u side / (2 side - 1) - 1 of it.
    scale = 2 * side / (2 * side - 1)
    x = -1 - scale * (shift + math.floor(x - shift))
    y = -1 - scale * (shift + math.floor(y - shift))
    return bilinear(table, frame.moved(scale, x, scale, y))[0]


@lru_cache(maxsize=2)
def _pyramid(name: TileName) -> tuple[Float[Tensor, "1 1 _ _"], ...]:
    """The tile, and copies halved again and again by averaging 2 × 2 points; each is repeated 2 × 2 times."""
    rng = np.random.default_rng(_SEED)
    make = {"clouds": _clouds, "grain": _grain}
    levels = [make[name](rng)]
    for _ in range(_COARSEST):
        half = len(levels[-1]) // 2
        levels.append(levels[-1].reshape(half, 2, half, 2).mean((1, 3)))
    return tuple(torch.from_numpy(np.tile(tile, (2, 2)).astype(np.float32))[None, None] for tile in levels)


def _clouds(rng: np.random.Generator) -> Float[np.ndarray, "side side"]:
    return _spectrum(rng, slope=2.0, lowest=3.0, highest=40.0)


def _grain(rng: np.random.Generator) -> Float[np.ndarray, "side side"]:
    return _spectrum(rng, slope=1.2, lowest=12.0, highest=60.0)


def _spectrum(rng: np.random.Generator, slope: float, lowest: float, highest: float) -> Float[np.ndarray, "side side"]:
    """Noise whose amplitude falls as frequency^-slope from `lowest` cycles per tile and ends at about `highest`."""
    frequency = np.hypot(np.fft.fftfreq(SIDE)[:, None], np.fft.rfftfreq(SIDE)[None, :]) * SIDE
    amplitude = np.maximum(frequency, lowest) ** -slope * np.exp(-((frequency / highest) ** 2))
    waves = np.fft.rfft2(rng.standard_normal((SIDE, SIDE))) * amplitude
    waves[0, 0] = 0
    return _ranked(np.fft.irfft2(waves, s=(SIDE, SIDE)))


def _ranked(values: Float[np.ndarray, "side side"]) -> Float[np.ndarray, "side side"]:
    order = np.empty(values.size)
    order[values.reshape(-1).argsort(kind="stable")] = np.linspace(0, 1, values.size)
    return order.reshape(values.shape)
