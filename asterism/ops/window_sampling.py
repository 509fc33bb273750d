"""One patch from every window of a patch grid, so that dense losses use only a fraction of the patches.

>>> places = sample_windows(keys=torch.tensor([7, 8]), grid=(4, 6), window=2)  # two images, six windows
>>> places.shape
torch.Size([2, 6])
>>> sample_windows(torch.tensor([7]), (4, 6), 2, mode="fixed").tolist()
[[0, 2, 4, 12, 14, 16]]
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Int
from torch import Tensor

from asterism.ops.random import uniform

WindowMode = Literal["random", "fixed"]  # any cell of each window, or its first
_CORNERS = 4


def window_cells(grid: tuple[int, int], window: int) -> Int[Tensor, "4 windows cells"]:
    """The raster indices of the cells of each window × window square; windows and their cells are in raster order.

    The windows that fit cover a rectangle. If it does not cover the whole grid, it may be aligned with
    any corner: top left, top right, bottom left, bottom right (first axis). Otherwise the four are the same.
    """
    rows, columns = (side // window for side in grid)
    assert min(rows, columns) > 0, f"no window of {window} cells fits a grid of {grid[0]}×{grid[1]}"
    raster = torch.arange(grid[0] * grid[1]).view(grid)
    covered = [
        raster[top : top + rows * window, left : left + columns * window]
        for top in (0, grid[0] - rows * window)
        for left in (0, grid[1] - columns * window)
    ]
    tiles = torch.stack(covered).view(_CORNERS, rows, window, columns, window)
    return tiles.transpose(2, 3).reshape(_CORNERS, rows * columns, window * window)


def sample_windows(
    keys: Int[Tensor, " b"], grid: tuple[int, int], window: int, mode: WindowMode = "random"
) -> Int[Tensor, "b windows"]:
    """One patch per window for each image, drawn from its key: a uniform corner, then a uniform cell of each window."""
    cells = window_cells(grid, window)
    corner, *_ = draws = uniform(keys, 1 + cells.shape[1]).unbind(dim=1)
    windows = cells[(corner * _CORNERS).long()]
    if mode == "fixed":
        return windows[..., 0]
    chosen = (torch.stack(draws[1:], dim=1) * cells.shape[2]).long()
    return windows.gather(2, chosen[..., None])[..., 0]
