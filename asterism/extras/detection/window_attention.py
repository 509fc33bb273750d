"""ViTDet's backbone: a plain ViT on large images, whose blocks attend within windows except for a few global ones.

Blocks are the pretrained ones; only the tokens that attend to each other are restricted. Class token and registers are
left out, as in ViTDet: a window has no place for them.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from asterism.errors import UserError
from asterism.nn.backbone import Backbone
from asterism.nn.positions import Grid
from asterism.nn.stochastic_depth import branch_factors, run_block
from asterism.nn.vit import ViT
from asterism.types import Tokens


def check_windows_fit(backbone: Backbone) -> None:
    """Raise unless blocks are those of a plain ViT."""
    if type(backbone) is not ViT:
        raise UserError(
            f"task.head.window needs a plain ViT, and {backbone.architecture.name} is not one; leave it out "
            "(task.head.window=null)"
        )


def global_blocks(depth: int, count: int) -> set[int]:
    """The last block of each of `count` equal parts: 2, 5, 8 and 11 of 12."""
    return {max(0, round(depth * part / count) - 1) for part in range(1, count + 1)}


def windowed_tokens(
    backbone: Backbone,
    pixels: Float[Tensor, "b 3 h w"],
    window: int,
    whole: set[int],
    drop_keys: Int[Tensor, " b"] | None,
) -> Tokens:
    """Patch tokens after the last block, without the final norm. whole: blocks that attend everywhere."""
    embedded = backbone.embedded(pixels)
    x, grid = embedded.patches, embedded.grid
    factors = branch_factors(drop_keys, backbone.depth, backbone.drop_path, pixels.device)
    network: Any = backbone.network
    for index, block in enumerate(network.blocks):
        factor = factors[index]
        if index in whole:
            x = run_block(block, x, factor, backbone.checkpointing)
            continue
        windows, allowed = to_windows(x, grid, window)
        count = windows.shape[0] // x.shape[0]
        repeated = None if factor is None else factor.repeat_interleave(count, dim=1)
        windows = run_block(block, windows, repeated, backbone.checkpointing, (allowed,))
        x = from_windows(windows, grid, window)
    return Tokens(None, x, registers=x[:, :0], grid=grid)


def to_windows(
    x: Float[Tensor, "b n d"], grid: Grid, window: int
) -> tuple[Float[Tensor, "windows cells d"], Bool[Tensor, "windows 1 1 cells"] | None]:
    """Tokens by window, and which of them may be attended to; None: all.

    Windows at the right and lower border are filled up with zeros, which are not attended to.
    """
    rows, columns = grid
    below, right = -rows % window, -columns % window
    maps = F.pad(x.reshape(x.shape[0], rows, columns, -1), (0, 0, 0, right, 0, below))
    cells = _cut(maps, window)
    if not below and not right:
        return cells, None
    real = F.pad(x.new_ones(1, rows, columns, 1), (0, 0, 0, right, 0, below))
    allowed = _cut(real, window)[..., 0].bool().repeat(x.shape[0], 1)
    return cells, allowed[:, None, None]


def from_windows(windows: Float[Tensor, "windows cells d"], grid: Grid, window: int) -> Float[Tensor, "b n d"]:
    """The inverse of `to_windows`."""
    rows, columns = (-(-side // window) for side in grid)
    maps = windows.view(-1, rows, columns, window, window, windows.shape[2]).permute(0, 1, 3, 2, 4, 5)
    whole = maps.reshape(maps.shape[0], rows * window, columns * window, -1)
    return whole[:, : grid[0], : grid[1]].flatten(1, 2)


def _cut(maps: Float[Tensor, "b rows columns d"], window: int) -> Float[Tensor, "windows cells d"]:
    b, rows, columns, d = maps.shape
    cut = maps.view(b, rows // window, window, columns // window, window, d).permute(0, 1, 3, 2, 4, 5)
    return torch.reshape(cut, (-1, window * window, d))
