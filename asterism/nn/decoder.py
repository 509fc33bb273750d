"""The decoder of masked autoencoders: from tokens of visible patches to pixels of all patches, or of the others."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from asterism.errors import UserError
from asterism.nn.initialisation import xavier_like_mae
from asterism.nn.needed_outputs import can_skip_outputs, last_outputs
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

    def forward(
        self, tokens: Tokens, keep: Int[Tensor, "b m"], removed: Int[Tensor, "b r"] | None = None
    ) -> Float[Tensor, "b _ p"]:
        """The pixels of every patch in raster order, or of the removed ones alone in their order.

        keep: the positions of the visible tokens.
        removed: the other positions. Tokens carry their positions, so their order is free: mask tokens come last, and
            the last block computes no others.
        """
        first, visible = self._embedded(tokens, keep)
        gaps = (self.mask_token[0] + self.positions).to(visible.dtype)
        if removed is None:
            canvas = gaps.expand(len(visible), -1, -1)
            x = torch.cat([*first, canvas.scatter(1, keep[..., None].expand_as(visible), visible)], dim=1)
            return self.pred(self.norm(self.blocks(x))[:, -len(gaps) :])
        x = torch.cat([*first, visible, F.embedding(removed, gaps)], dim=1)
        *earlier, last = self.blocks
        for block in earlier:
            x = block(x)
        count = removed.shape[1]
        return self.pred(self.norm(last_outputs(last, x, count) if can_skip_outputs(last) else last(x)[:, -count:]))

    def _embedded(
        self, tokens: Tokens, keep: Int[Tensor, "b m"]
    ) -> tuple[list[Float[Tensor, "b 1 d"]], Float[Tensor, "b m d"]]:
        """The class token, if any, and the visible tokens with their positions, in the decoder's width."""
        if tokens.cls is None:
            return [], self.embed(tokens.patches) + self.positions[keep]
        both = self.embed(torch.cat([tokens.cls[:, None], tokens.patches], dim=1))
        return [both[:, :1]], both[:, 1:] + self.positions[keep]
