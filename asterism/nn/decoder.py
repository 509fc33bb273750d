"""The decoder of masked autoencoders: from tokens of visible patches to pixels of all patches."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from asterism.errors import UserError
from asterism.nn.initialisation import xavier_like_mae
from asterism.nn.positions import Grid, sincos_table
from asterism.types import Tokens


class PixelDecoder(nn.Module):
    """A narrow transformer over visible tokens and mask tokens, with fixed sine-cosine positions.

    A class token is included, with position zero; registers stay in the encoder. Apart from the prefix `decoder_`,
    parameters are named as in public MAE checkpoints.
    """

    positions: Float[Tensor, "n d"]

    def __init__(
        self, in_dim: int, grid: Grid, patch_dim: int, dim: int = 512, depth: int = 8, heads: int = 16
    ) -> None:
        from timm.models.vision_transformer import Block  # slow to import, and configurations are read without it

        super().__init__()
        if dim % heads:
            raise UserError(f"a decoder of width {dim} cannot have {heads} heads; choose a divisor of {dim}")
        self.grid = grid
        self.embed = nn.Linear(in_dim, dim)
        self.mask_token = nn.Parameter(torch.empty(1, 1, dim))
        norm: Any = partial(nn.LayerNorm, eps=1e-6)
        self.blocks = nn.Sequential(
            *[Block(dim, heads, mlp_ratio=4, qkv_bias=True, norm_layer=norm) for _ in range(depth)]
        )
        self.norm = norm(dim)
        self.pred = nn.Linear(dim, patch_dim)
        self.register_buffer("positions", sincos_table(dim, grid), persistent=False)
        xavier_like_mae(self)

    def forward(self, tokens: Tokens, keep: Int[Tensor, "b m"]) -> Float[Tensor, "b n p"]:
        """The pixels of every patch in raster order; `keep` gives the positions of the visible tokens."""
        visible = self.embed(tokens.patches)
        b, _, d = visible.shape
        canvas = self.mask_token.to(visible.dtype).expand(b, len(self.positions), d)
        x = canvas.scatter(1, keep[..., None].expand_as(visible), visible) + self.positions
        if tokens.cls is not None:
            x = torch.cat([self.embed(tokens.cls)[:, None], x], dim=1)
        return self.pred(self.norm(self.blocks(x))[:, -len(self.positions) :])
