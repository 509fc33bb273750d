"""What a block of pixels reads at its coordinates: linear fields, tables, periodic noise, patterns of things."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from asterism.data.sources.scenes.shapes import Field
from asterism.data.sources.scenes.surfaces import Surface

TileName: TypeAlias = Literal["clouds", "grain"]

_SIDE = 256  # points per side of a tile of noise, which stands for the unit square
_COARSEST = 4  # times that a tile's coarsest copy is halved
# Amplitudes fall as frequency^-slope from the lowest number of cycles per tile, and end at about the highest.
_SPECTRA = {"clouds": (2.0, 3.0, 40.0), "grain": (1.2, 12.0, 60.0)}
_SEED = 7


class Frame(NamedTuple):
    """Coordinates over a block of pixels: x[0] · column + x[1] · row + x[2], and the same with y."""

    columns: Float[np.ndarray, " w"]  # centres of the pixels
    rows: Float[np.ndarray, " h"]
    x: tuple[float, float, float] = (1.0, 0.0, 0.0)
    y: tuple[float, float, float] = (0.0, 1.0, 0.0)

    def linear(self, a: float, b: float, c: float = 0.0) -> Float[np.ndarray, "h w"]:
        """The field a x + b y + c."""
        right = self.columns * (a * self.x[0] + b * self.y[0])
        down = self.rows * (a * self.x[1] + b * self.y[1])
        down += a * self.x[2] + b * self.y[2] + c
        return right + down[:, None]

    def moved(self, scale_x: float, x: float, scale_y: float, y: float) -> Frame:
        """The coordinates (scale_x · x + x, scale_y · y + y)."""
        (xx, xy, x0), (yx, yy, y0) = self.x, self.y
        across = scale_x * xx, scale_x * xy, scale_x * x0 + x
        return Frame(self.columns, self.rows, across, (scale_y * yx, scale_y * yy, scale_y * y0 + y))


@lru_cache(maxsize=8)
def pixel_centres(size: int) -> Float[np.ndarray, " {size}+2"]:
    """Centres of the pixels of a row, and of one more on either side."""
    return np.arange(-1, size + 1, dtype=np.float32) + np.float32(0.5)


@lru_cache(maxsize=8)
def whole_picture(size: int) -> Frame:
    """Coordinates from 0 to 1 over a picture."""
    centres = pixel_centres(size)[1:-1]
    return Frame(centres, centres, (1 / size, 0.0, 0.0), (0.0, 1 / size, 0.0))


def clip_to_unit(values: Field) -> Field:
    """Into [0, 1], in place."""
    np.maximum(values, 0, out=values)
    return np.minimum(values, 1, out=values)


def bilinear(table: Float[Tensor, "1 c rows columns"], frame: Frame) -> Float[np.ndarray, "c h w"]:
    """The table's channels at the frame's coordinates; its outermost points lie at ±1 and are repeated outside."""
    grid = np.empty((1, len(frame.rows), len(frame.columns), 2), dtype=np.float32)
    (xx, xy, x0), (yx, yy, y0) = frame.x, frame.y
    np.add(frame.columns * xx, (frame.rows * xy + x0)[:, None], out=grid[0, :, :, 0])
    np.add(frame.columns * yx, (frame.rows * yy + y0)[:, None], out=grid[0, :, :, 1])
    read: Tensor = torch.nn.functional.grid_sample(
        table, torch.from_numpy(grid), mode="bilinear", padding_mode="border", align_corners=True
    )
    return read.numpy()[0]


def noise(name: TileName, frame: Frame, step: float) -> Float[np.ndarray, "h w"]:
    """The tile, repeated over the plane, at points `step` apart; the block must be less than one tile wide and high."""
    level = min(int(math.log2(max(1.0, step * _SIDE))), _COARSEST)
    table = _pyramid(name)[level]
    side = table.shape[-1] // 2
    # Halving moves point 0 to the middle of the points it stands for.
    shift = (1 - 0.5**level) / (2 * side)
    # The table holds the tile twice in each direction: place u of [0, 2) lies at 2 u side / (2 side - 1) - 1 of it.
    scale = 2 * side / (2 * side - 1)
    left, right = float(frame.columns[0]), float(frame.columns[-1])
    top, bottom = float(frame.rows[0]), float(frame.rows[-1])
    starts = []
    for across, down, start in (frame.x, frame.y):
        least = min(across * left, across * right) + min(down * top, down * bottom) + start
        starts.append(-1 - scale * (shift + math.floor(least - shift)))
    return bilinear(table, frame.moved(scale, starts[0], scale, starts[1]))[0]


@lru_cache(maxsize=2)
def _pyramid(name: TileName) -> list[Float[Tensor, "1 1 _ _"]]:
    """The tile, and copies halved again and again by averaging 2 × 2 points; each is repeated 2 × 2 times."""
    slope, lowest, highest = _SPECTRA[name]
    frequency = np.hypot(np.fft.fftfreq(_SIDE)[:, None], np.fft.rfftfreq(_SIDE)[None, :]) * _SIDE
    amplitude = np.maximum(frequency, lowest) ** -slope * np.exp(-((frequency / highest) ** 2))
    waves = np.fft.rfft2(np.random.default_rng(_SEED).standard_normal((_SIDE, _SIDE))) * amplitude
    waves[0, 0] = 0
    values = np.fft.irfft2(waves, s=(_SIDE, _SIDE))
    ranks = np.empty(values.size)
    ranks[values.reshape(-1).argsort(kind="stable")] = np.linspace(0, 1, values.size)
    levels = [ranks.reshape(values.shape)]
    for _ in range(_COARSEST):
        half = len(levels[-1]) // 2
        levels.append(levels[-1].reshape(half, 2, half, 2).mean((1, 3)))
    return [torch.from_numpy(np.tile(level, (2, 2)).astype(np.float32))[None, None] for level in levels]


def pattern(surface: Surface, frame: Frame, pixels: float) -> Field:
    """Share of the second colour at points of the thing's frame, whose radius (length 1) is `pixels` pixels wide.

    Edges are one pixel soft, and patterns too fine for the pixels fade into their mean instead of aliasing.
    """
    period = pixels / surface.cycles
    contrast = min(1.0, max(0.0, (period - 2) / 2))
    steep = max(0.5, period / (2 * math.pi))
    a, b = math.cos(surface.direction), math.sin(surface.direction)
    wave = 2 * math.pi * surface.cycles
    shift = 2 * math.pi * surface.phase

    match surface.pattern:
        case "fade":
            return clip_to_unit(frame.linear(0.6 * a, 0.6 * b, 0.5))
        case "marble":
            return _veined("clouds", surface, frame, 0.05 * surface.cycles, pixels)
        case "grain":
            return _veined("grain", surface, frame, 0.11 * surface.cycles, pixels)
        case "hoops":
            share = np.sin(wave * np.sqrt(frame.linear(1, 0) ** 2 + frame.linear(0, 1) ** 2) + shift)
        case "waves":
            bend = np.sin(frame.linear(-wave * b, wave * a))
            share = np.sin(frame.linear(wave * a, wave * b, shift) + 1.3 * bend)
        case _:
            share = np.sin(frame.linear(wave * a, wave * b, shift))  # stripes
            if surface.pattern == "checks":
                share *= np.sin(frame.linear(-wave * b, wave * a))
                steep *= 2
            elif surface.pattern == "dots":
                share += np.sin(frame.linear(-wave * b, wave * a))
                share -= 0.7
    share *= steep * contrast
    share += 0.5
    return clip_to_unit(share)


def _veined(tile: TileName, surface: Surface, frame: Frame, scale: float, pixels: float) -> Field:
    share = noise(tile, frame.moved(scale, surface.phase, scale, surface.direction), scale / pixels)
    share *= 1.6
    share -= 0.3
    return clip_to_unit(share)
