"""timm's vision transformers that rotate queries and keys by the position of their patch: DINOv3, EVA-02 and others.

Rotary positions are computed for the grid of each image, so any input size works without resampling.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from timm.layers import (  # type: ignore[attr-defined]
    AttentionRope,
    PatchEmbed,
    RotaryEmbeddingDinoV3,
)
from timm.models.eva import Eva, EvaAttention, EvaBlock, EvaBlockPostNorm
from torch import Tensor

from asterism.errors import UserError
from asterism.nn.backbone import Architecture, BackboneConfig
from asterism.nn.positions import Grid
from asterism.nn.vit import ViT, arguments
from asterism.types import Tokens

_NAMES = {"reg_tokens": "num_reg_tokens"}  # a plain ViT's argument → that of these networks


def build(config: BackboneConfig) -> RopeViT:
    """A network with fresh weights."""
    if config.positions == "sincos":
        raise UserError(f"backbone.positions = sincos does not fit {config.name}, which has rotary positions")
    given = {_NAMES.get(name, name): value for name, value in arguments(config).items()}
    return RopeViT(
        Architecture(config.name, given, config.resampling, config.layer_norm_eps),
        drop_path=config.drop_path,
        mask_token=config.mask_token,
        checkpointing=config.checkpointing,
    )


class RopeViT(ViT):
    """A timm `Eva` as a `Backbone`. Class token and registers are not rotated."""

    @property
    def turns_like_dinov3(self) -> bool:
        """Whether positions are those of DINOv3: patch centres in [-1, 1] along each side, the same for all blocks."""
        rope = self.network.rope
        own = (rope.normalize_coords, rope.grid_offset) if type(rope) is RotaryEmbeddingDinoV3 else None
        return own == ("separate", 0.0) and rope.rotate_half and self.network.pos_embed is None

    def context(self, grid: Grid, keep: Int[Tensor, "b m"] | None) -> Sequence[tuple[Float[Tensor, ...] | None]]:
        """Sines and cosines of every block: one table, or (`rope_mixed`) a learned one per block."""
        rope = self.network.rope
        if rope is None:
            return [(None,)] * self.depth
        table = rope.get_embed(shape=list(grid))
        tables = table.unbind() if self.network.rope_mixed else [table] * self.depth
        return [(each if keep is None else _kept(each, keep),) for each in tables]

    def _pooled_by_attention(self, tokens: Tokens) -> Float[Tensor, "b t d"]:
        """Unlike plain ViTs, these pool over the class token and registers too."""
        prefix = [] if tokens.cls is None else [tokens.cls[:, None]]
        return torch.cat([*prefix, tokens.registers, tokens.patches], dim=1)

    @staticmethod
    def _is_known(network: Any) -> bool:
        return (
            type(network) is Eva
            and type(network.patch_embed) is PatchEmbed
            and all(
                type(block) in (EvaBlock, EvaBlockPostNorm) and type(block.attn) in (EvaAttention, AttentionRope)
                for block in network.blocks
            )
        )


def _kept(table: Tensor, keep: Int[Tensor, "b m"]) -> Tensor:
    """The rows of the kept patches, as [b, heads or 1, m, k]."""
    if table.ndim == 2:  # the same for all heads
        return table[keep][:, None]
    return table[:, keep].transpose(0, 1)
