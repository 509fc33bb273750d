"""Images as sequences of flattened patches, and back. A patch vector runs over row, column, channel (fastest)."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor


def patchify(pixels: Float[Tensor, "b c h w"], patch_size: int) -> Float[Tensor, "b n {patch_size}*{patch_size}*c"]:
    """Non-overlapping patches in raster order."""
    b, c, h, w = pixels.shape
    tiles = pixels.reshape(b, c, h // patch_size, patch_size, w // patch_size, patch_size)
    return tiles.permute(0, 2, 4, 3, 5, 1).reshape(b, -1, patch_size * patch_size * c)


def unpatchify(patches: Float[Tensor, "b n d"], grid: tuple[int, int], patch_size: int) -> Float[Tensor, "b c h w"]:
    """The images whose `patchify` is `patches`."""
    rows, columns = grid
    tiles = patches.reshape(len(patches), rows, columns, patch_size, patch_size, -1)
    return tiles.permute(0, 5, 1, 3, 2, 4).reshape(len(patches), -1, rows * patch_size, columns * patch_size)


def standardize(
    patches: Float[Tensor, "*rows d"], epsilon: float = 1e-6
) -> tuple[Float[Tensor, "*rows d"], Float[Tensor, "*rows 1"], Float[Tensor, "*rows 1"]]:
    """Patches with mean 0 and variance 1 each (the unbiased variance), and the means and deviations that undo it."""
    mean = patches.mean(dim=-1, keepdim=True)
    deviation = (patches.var(dim=-1, keepdim=True) + epsilon).sqrt()
    return (patches - mean) / deviation, mean, deviation
