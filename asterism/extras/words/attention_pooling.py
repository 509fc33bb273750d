"""Attention pooling: one learnt query reads the tokens of an image, and becomes one vector."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from asterism.config import Config
from asterism.errors import UserError
from asterism.ranges import Few, NonNegative
from asterism.types import Features

TokenChoice = Literal["sparse", "class", "patches", "sparse+class", "mean-patch"]
# The field of `Features` that each of them is made of.
FIELDS = {"sparse": "sparse", "class": "cls", "patches": "patches", "mean-patch": "patches"}


class ProbeConfig(Config):
    """What the probe reads, and its size. Its width is that of the tokens."""

    tokens: TokenChoice | Literal["auto"] = "auto"  # auto: sparse tokens if the encoder has them, else patches
    heads: Few | Literal["auto"] = "auto"  # auto: one per 64 channels
    mlp_ratio: NonNegative = 4.0  # width of the MLP after the attention, over that of the tokens; 0: no MLP


def chosen_tokens(features: Features, choice: TokenChoice) -> Float[Tensor, "b t d"]:
    """The tokens that the probe reads."""
    if choice == "patches":
        return features.patches
    if choice == "mean-patch":
        return features.patches.mean(dim=1, keepdim=True)
    if choice == "class":
        return features.cls[:, None]
    if features.sparse is None:
        raise UserError(
            f"probe.tokens={choice} reads concept tokens, which this encoder does not have; choose class, patches or "
            "mean-patch, or a model of `asterism pretrain stellar`"
        )
    return features.sparse if choice == "sparse" else torch.cat([features.sparse, features.cls[:, None]], dim=1)


class AttentionPooling(nn.Module):
    """Cross-attention of one query to normalised tokens, an MLP with a residual connection, and a projection."""

    def __init__(self, dim: int, out_dim: int, heads: int, mlp_ratio: float = 4.0) -> None:
        super().__init__()
        if dim % heads:
            raise UserError(f"probe.heads = {heads} does not divide the {dim} channels of the tokens")
        self.heads, self.mlp_ratio = heads, mlp_ratio
        self.query = nn.Parameter(torch.randn(1, 1, dim) * dim**-0.5)
        self.norm = nn.LayerNorm(dim)
        self.key_value = nn.Linear(dim, 2 * dim)
        self.out = nn.Linear(dim, dim)
        hidden = round(mlp_ratio * dim)
        self.mlp = (
            nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, dim))
            if hidden
            else None
        )
        self.project = nn.Linear(dim, out_dim, bias=False)

    def forward(self, tokens: Float[Tensor, "b t d"]) -> Float[Tensor, "b e"]:
        """One vector per image, not normalised."""
        made: Tensor = self.key_value(self.norm(tokens))
        key, value = made.view(*made.shape[:2], 2, self.heads, -1).permute(2, 0, 3, 1, 4)
        query = self.query.expand(tokens.shape[0], -1, -1).reshape(tokens.shape[0], 1, self.heads, -1).transpose(1, 2)
        read = F.scaled_dot_product_attention(query, key, value)
        x = self.out(read.transpose(1, 2).flatten(2)[:, 0])
        if self.mlp is not None:
            x = x + self.mlp(x)
        return self.project(x)

    def one_by_one(self, tokens: Float[Tensor, "b t d"]) -> Float[Tensor, "b t e"]:
        """The vector that each token would give if an image had no other."""
        made: Tensor = self(tokens.flatten(0, 1)[:, None])
        return made.view(*tokens.shape[:2], -1)


def usual_heads(dim: int) -> int:
    """One head per 64 channels, as in most transformers, or the next number that divides the channels."""
    return next(heads for heads in range(max(1, dim // 64), 0, -1) if dim % heads == 0)
