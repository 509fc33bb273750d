"""Reading tables at the pixels of a block: coordinates that are linear in the pixel's place, and bilinear lookup."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from asterism.data.sources.scenes.distance import Field


class Frame(NamedTuple):
    """Coordinates over a block of pixels: x = xx · column + xy · row + x0, and y = yx · column + yy · row + y0."""

    columns: Float[np.ndarray, " w"]  # centres of the pixels
    rows: Float[np.ndarray, " h"]
    xx: float = 1.0
    xy: float = 0.0
    x0: float = 0.0
    yx: float = 0.0
    yy: float = 1.0
    y0: float = 0.0

    def linear(self, a: float, b: float, c: float = 0.0) -> Float[np.ndarray, "h w"]:
        """The field a x + b y + c."""
        right = self.columns * (a * self.xx + b * self.yx)
        down = self.rows * (a * self.xy + b * self.yy)
        down += a * self.x0 + b * self.y0 + c
        return right + down[:, None]

    def moved(self, scale_x: float, x: float, scale_y: float, y: float) -> Frame:
        """The coordinates (scale_x · x + x, scale_y · y + y)."""
        columns, rows, xx, xy, x0, yx, yy, y0 = self
        return Frame(
            columns,
            rows,
            scale_x * xx,
            scale_x * xy,
            scale_x * x0 + x,
            scale_y * yx,
            scale_y * yy,
            scale_y * y0 + y,
        )

    def least(self) -> tuple[float, float]:
        """The smallest x and the smallest y of the block."""
        left, right = float(self.columns[0]), float(self.columns[-1])
        top, bottom = float(self.rows[0]), float(self.rows[-1])
        x = min(self.xx * left, self.xx * right) + min(self.xy * top, self.xy * bottom) + self.x0
        y = min(self.yx * left, self.yx * right) + min(self.yy * top, self.yy * bottom) + self.y0
        return x, y


@lru_cache(maxsize=8)
def pixel_centres(size: int) -> Float[np.ndarray, " {size}+2"]:
    """Centres of the pixels of a row, and of one more on either side."""
    return np.arange(-1, size + 1, dtype=np.float32) + np.float32(0.5)


def bilinear(table: Float[Tensor, "1 c rows columns"], frame: Frame) -> Float[np.ndarray, "c h w"]:
    """The table's channels at the frame's coordinates; its outermost points lie at ±1 and are repeated outside."""
    grid = np.empty((1, len(frame.rows), len(frame.columns), 2), dtype=np.float32)
    np.add(frame.columns * frame.xx, (frame.rows * frame.xy + frame.x0)[:, None], out=grid[0, :, :, 0])
    np.add(frame.columns * frame.yx, (frame.rows * frame.yy + frame.y0)[:, None], out=grid[0, :, :, 1])
    read: Tensor = torch.nn.functional.grid_sample(
        table, torch.from_numpy(grid), mode="bilinear", padding_mode="border", align_corners=True
    )
    return read.numpy()[0]


def clip_to_unit(values: Field) -> Field:
    """Into [0, 1], in place."""
    np.maximum(values, 0, out=values)
    return np.minimum(values, 1, out=values)
