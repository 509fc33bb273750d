"""Segmenter's mask transformer (Strudel et al., 2021), as CrIBo fine-tunes it.

One learned token per class is processed with the patch tokens by two transformer blocks. The logit of a class in a
patch is the scalar product of both tokens after projection and normalisation, followed by a layer norm over classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from asterism.errors import UserError
from asterism.finetuning.segmentation.heads.base import Logits, SegmentHead, SegmentHeadConfig
from asterism.nn.backbone import Backbone
from asterism.nn.stochastic_depth import branch_factors, install_drop_paths, run_block
from asterism.ops import streams
from asterism.ops.random import fold_each
from asterism.ranges import Few, ShareBelowOne
from asterism.types import Tokens

_STD = 0.02  # of initial weights
_HEAD_WIDTHS = (64, 32, 16, 8)  # channels of an attention head, the largest that divides the width


class MaskTransformerConfig(SegmentHeadConfig):
    """Settings of the mask transformer."""

    name: Literal["mask-transformer"] = "mask-transformer"
    layers: Few = 2
    heads: Few | None = None  # None: heads of 64 channels, or of 32 if the width is not a multiple of 64
    drop_path: ShareBelowOne = 0.1  # stochastic depth at its last block

    def build(self, backbone: Backbone, classes: int) -> MaskTransformer:
        return MaskTransformer(self, backbone, classes)


class MaskTransformer(SegmentHead):
    """Class tokens and patch tokens in one transformer."""

    def __init__(self, config: MaskTransformerConfig, backbone: Backbone, classes: int) -> None:
        super().__init__()
        from timm.models.vision_transformer import Block

        dim = backbone.dim
        heads = config.heads or _usual_heads(dim)
        if dim % heads:
            raise UserError(
                f"task.head.heads = {heads} does not divide the {dim} channels of the network; "
                f"choose {_usual_heads(dim)}"
            )
        self.drop_path = config.drop_path
        self.input = nn.Linear(dim, dim)
        self.blocks = nn.ModuleList(Block(dim, heads, mlp_ratio=4, qkv_bias=True) for _ in range(config.layers))
        install_drop_paths(self.blocks)
        self.class_tokens = nn.Parameter(torch.empty(1, classes, dim))
        self.norm = nn.LayerNorm(dim)
        self.patch_projection = nn.Parameter(torch.randn(dim, dim) * dim**-0.5)
        self.class_projection = nn.Parameter(torch.randn(dim, dim) * dim**-0.5)
        self.mask_norm = nn.LayerNorm(classes)
        self.apply(_initialise)
        nn.init.trunc_normal_(self.class_tokens, std=_STD)

    def read(
        self, backbone: Backbone, pixels: Float[Tensor, "b 3 h w"], drop_keys: Int[Tensor, " b"] | None
    ) -> list[Tokens]:
        return [backbone(pixels, drop_keys=drop_keys)]

    def forward(self, tokens: Sequence[Tokens], keys: Int[Tensor, " b"] | None) -> list[Logits]:
        own = None if keys is None else fold_each(keys, streams.Segmentation.MASK_TRANSFORMER)
        logits = self._logits(tokens[0].patches, own)
        return [logits.mT.reshape(logits.shape[0], -1, *tokens[0].grid)]

    def _logits(self, patches: Float[Tensor, "b n d"], keys: Int[Tensor, " b"] | None) -> Float[Tensor, "b n c"]:
        classes = self.class_tokens.shape[1]
        x = torch.cat([self.input(patches), self.class_tokens.expand(patches.shape[0], -1, -1)], dim=1)
        drawn = branch_factors(keys, len(self.blocks), self.drop_path, x.device)
        for block, factors in zip(self.blocks, drawn, strict=True):
            x = run_block(block, x, factors, checkpointing=False)
        x = self.norm(x)
        there = F.normalize(x[:, :-classes] @ self.patch_projection, dim=2)
        masks = F.normalize(x[:, -classes:] @ self.class_projection, dim=2)
        return self.mask_norm(there @ masks.mT)


def _usual_heads(dim: int) -> int:
    return next((dim // width for width in _HEAD_WIDTHS if dim % width == 0), 1)


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=_STD)
        nn.init.zeros_(module.bias)
