"""Patch positions: fixed sine-cosine tables, and resampling of position tables to another grid."""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from asterism.errors import UserError
from asterism.ops.precision import at_least_float32

Grid = tuple[int, int]  # rows, columns
Positions = Literal["learned", "sincos"]

# antialiased: bicubic to the exact size, kernel widened when shrinking (timm, DINOv2 with registers, our own runs)
# plain: bicubic to the exact size, kernel never widened (MAE, transformers)
# offset: like plain, but with the step old/(new + 0.1) (DINO, iBOT, DINOv2 without registers)
Resampling = Literal["antialiased", "plain", "offset"]


def sincos_table(dim: int, grid: Grid) -> Float[Tensor, "n {dim}"]:
    """Fixed positions in raster order: the first half of the channels encodes the column, the second half the row.

    Each half is [sin(p w), cos(p w)] with w_k = 10000^(-k / (dim/4)), k = 0 … dim/4 - 1.
    """
    if dim % 4:
        raise UserError(f"sin-cos positions need a width divisible by 4, got {dim}; use positions: learned")
    quarter = dim // 4
    frequency = 10000 ** (-torch.arange(quarter, dtype=torch.float64) / quarter)
    rows, columns = (torch.arange(length, dtype=torch.float64)[:, None] * frequency for length in grid)
    row_code = torch.cat([rows.sin(), rows.cos()], dim=1)[:, None].expand(-1, grid[1], -1)
    column_code = torch.cat([columns.sin(), columns.cos()], dim=1)[None].expand(grid[0], -1, -1)
    return torch.cat([column_code, row_code], dim=-1).flatten(0, 1).float()


def resample(table: Float[Tensor, "1 n d"], old: Grid, new: Grid, form: Resampling) -> Float[Tensor, "1 m d"]:
    """Resample a table of positions (patches only) from the old grid to the new, by separable bicubic interpolation."""
    if old == new:
        return table
    picture = at_least_float32(table).view(1, *old, -1).permute(0, 3, 1, 2)
    if form == "offset":
        scale = ((new[0] + 0.1) / old[0], (new[1] + 0.1) / old[1])
        picture = F.interpolate(picture, scale_factor=scale, mode="bicubic")
    else:
        picture = F.interpolate(picture, size=new, mode="bicubic", antialias=form == "antialiased")
    assert picture.shape[-2:] == new
    return picture.permute(0, 2, 3, 1).flatten(1, 2).to(table.dtype)


def table_layout(rows: int, prefix: int, patches_only_first: bool) -> tuple[int, bool]:
    """Side of the square grid of a position table, and whether it has rows for patches only.

    `prefix` counts the class token and registers, which may have rows before the patches. If both interpretations give
    a square, `patches_only_first` decides.
    """
    for patches_only in (patches_only_first, not patches_only_first):
        patches = rows if patches_only else rows - prefix
        side = math.isqrt(max(patches, 0))
        if side > 0 and side * side == patches:
            return side, patches_only
    raise UserError(f"a table of {rows} positions does not fit a square grid of patches after {prefix} other tokens")
