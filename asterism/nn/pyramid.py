"""Feature maps at four resolutions from the tokens of a backbone, for heads that need a pyramid.

A plain ViT has one resolution. As in BEiT and iBOT, the tokens after blocks 3, 5, 7 and 11 of 12 become maps at four,
two, one and half times the resolution of the patch grid, which is strides 4, 8, 16 and 32 for patches of 16 pixels:
transposed convolutions for the finer maps, max pooling for the coarser one. A Swin's stages already have these strides;
each gets a layer norm.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor, nn

from asterism.nn.backbone import Backbone
from asterism.nn.batch_norm import SyncedBatchNorm2d
from asterism.types import Tokens

_FINEST = 4  # pixels per cell of the finest map, where the patch size allows it
_MOST_DOUBLINGS = 2

Levels = list[Float[Tensor, "b _ _ _"]]  # from fine to coarse


def build_pyramid(backbone: Backbone) -> Pyramid:
    """The pyramid that fits a backbone, with fresh weights. Seed torch's default generator first."""
    if backbone.first_block == 0:  # all blocks have one grid
        return TokenPyramid(backbone.dim, backbone.patch_size)
    return StagePyramid(backbone.level_widths, backbone.patch_size)


def token_map(tokens: Tokens) -> Float[Tensor, "b d rows columns"]:
    """The patch tokens as a feature map."""
    return tokens.patches.mT.reshape(tokens.patches.shape[0], -1, *tokens.grid)


class Pyramid(nn.Module, ABC):
    """Turns the tokens after `Backbone.level_blocks` into maps, from fine to coarse; each halves the resolution."""

    widths: tuple[int, ...]  # channels
    strides: tuple[int, ...]  # pixels per cell

    @abstractmethod
    def forward(self, levels: Sequence[Tokens]) -> Levels: ...


class TokenPyramid(Pyramid):
    """The pyramid of a plain ViT; a block's tokens are used without the final norm.

    For patches of 8 pixels the finest map has twice the resolution of the grid, so that strides are again 4 … 32.
    """

    def __init__(self, dim: int, patch_size: int) -> None:
        super().__init__()
        finest = min(_MOST_DOUBLINGS, max(0, round(math.log2(patch_size / _FINEST))))
        doublings = [finest - level for level in range(4)]
        self.levels = nn.ModuleList(_resampling(dim, each) for each in doublings)
        self.widths = (dim,) * 4
        self.strides = tuple(round(patch_size * 2.0**-each) for each in doublings)

    def forward(self, levels: Sequence[Tokens]) -> Levels:
        return [level(token_map(tokens)) for level, tokens in zip(self.levels, levels, strict=True)]


class StagePyramid(Pyramid):
    """The stages of a Swin, each with its own layer norm."""

    def __init__(self, widths: Sequence[int], patch_size: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for width in widths)
        self.widths = tuple(widths)
        self.strides = tuple(patch_size >> behind for behind in reversed(range(len(widths))))

    def forward(self, levels: Sequence[Tokens]) -> Levels:
        normed = [norm(tokens.patches) for norm, tokens in zip(self.norms, levels, strict=True)]
        return [
            patches.mT.reshape(patches.shape[0], -1, *tokens.grid)
            for patches, tokens in zip(normed, levels, strict=True)
        ]


def _resampling(dim: int, doublings: int) -> nn.Module:
    """Doubles the resolution of a map so many times; halves it if negative (an odd last row or column is kept)."""
    if doublings < 0:
        side = 2**-doublings
        return nn.MaxPool2d(side, side, ceil_mode=True)
    layers: list[nn.Module] = []
    for number in range(doublings):
        if number:
            layers += [SyncedBatchNorm2d(dim), nn.GELU()]
        layers.append(nn.ConvTranspose2d(dim, dim, kernel_size=2, stride=2))
    return nn.Sequential(*layers)
