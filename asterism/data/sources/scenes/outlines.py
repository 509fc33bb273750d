"""Outlines as tables: every kind's distance fields, sampled once on a grid, so that drawing is a table lookup.

Each kind has `VARIANTS` outlines, brought to one scale: the smallest circle around the middle of the bounding box that
holds the silhouette has radius 1. Their areas are known, so that the layout decides which thing will be the largest.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from asterism.data.sources.scenes.draws import Draws
from asterism.data.sources.scenes.shapes import KINDS, Field, Figure
from asterism.ops import streams
from asterism.ops.random import fold

VARIANTS = 16
GRID = 105  # points per side of a table, odd so that every other point spans the same square
EXTENT = 1.12  # the table covers [-EXTENT, EXTENT]²: the unit circle and a margin for soft edges
_COARSE_UP_TO = 28.0  # pixels


class Outline(NamedTuple):
    """One variant of a kind, scaled into the unit circle."""

    fine: Float[Tensor, "1 2 rows columns"]  # signed distances to the silhouette and to the part with its own colour
    coarse: Float[Tensor, "1 2 half_rows half_columns"]  # every other point of `fine`
    area: float  # of the silhouette; the unit circle has π
    half_width: float  # of a box around the origin that holds the silhouette
    half_height: float

    def table(self, radius: float) -> Float[Tensor, "1 2 _ _"]:
        """The table for drawing with this radius in pixels.

        Lookups are bound by memory, and small things do not need the fine table: up to this radius, neighbouring
        points of the coarse one are not much more than a pixel apart.
        """
        return self.coarse if radius < _COARSE_UP_TO else self.fine


@lru_cache(maxsize=1)
def outlines() -> list[list[Outline]]:
    """All variants by kind, in the order of `CLASSES`. Takes about half a second, once per process."""
    return [[_outline(kind, variant) for variant in range(VARIANTS)] for kind in range(len(KINDS))]


def _outline(kind: int, variant: int) -> Outline:
    def figure(columns: Field, rows: Field) -> Figure:
        draw = Draws(fold(streams.Outlines.PROPORTIONS, kind, variant))
        return list(KINDS.values())[kind](draw, columns[None, :], rows[:, None])

    # The middle of the silhouette's bounding box, and the radius that reaches its farthest point from there.
    line = np.linspace(-1.4, 1.4, GRID // 2, dtype=np.float32)
    rows, columns = np.nonzero(figure(line, line)[0] < 0)
    x, y = line[columns], line[rows]
    middle_x, middle_y = float(x.min() + x.max()) / 2, float(y.min() + y.max()) / 2
    radius = float(np.hypot(x - middle_x, y - middle_y).max()) + float(line[1] - line[0]) / 2

    line = np.linspace(-EXTENT, EXTENT, GRID, dtype=np.float32)
    distances = np.stack(np.broadcast_arrays(*figure(radius * line + middle_x, radius * line + middle_y))) / radius
    fine = torch.from_numpy(distances.astype(np.float32))[None]
    pitch = 2 * EXTENT / (GRID - 1)
    touched = distances[0] < pitch
    return Outline(
        fine=fine,
        coarse=fine[:, :, ::2, ::2].contiguous(),
        area=np.count_nonzero(distances[0] < 0) * pitch**2,
        half_width=float(np.abs(line[touched.any(axis=0)]).max()),
        half_height=float(np.abs(line[touched.any(axis=1)]).max()),
    )
