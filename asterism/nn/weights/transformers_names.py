"""Conversion from the transformers library's names for the parts of a ViT."""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor


def from_transformers(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The ViT under a prefix, from the names of transformers to those of timm; query, key and value are fused."""
    own = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    renamed = {}
    for name, tensor in own.items():
        if name in _TRANSFORMERS_NAMES:
            renamed[_TRANSFORMERS_NAMES[name]] = tensor
        elif match := re.fullmatch(r"encoder\.layer\.(\d+)\.(.+)\.(weight|bias)", name):
            block, part, kind = match.groups()
            if part in _TRANSFORMERS_PARTS:
                renamed[f"blocks.{block}.{_TRANSFORMERS_PARTS[part]}.{kind}"] = tensor
            elif part == "attention.attention.query":
                parts = [own[name.replace("query", other)] for other in ("query", "key", "value")]
                renamed[f"blocks.{block}.attn.qkv.{kind}"] = torch.cat(parts)
    return renamed


_TRANSFORMERS_NAMES = {
    "embeddings.cls_token": "cls_token",
    "embeddings.position_embeddings": "pos_embed",
    "embeddings.patch_embeddings.projection.weight": "patch_embed.proj.weight",
    "embeddings.patch_embeddings.projection.bias": "patch_embed.proj.bias",
    "layernorm.weight": "norm.weight",
    "layernorm.bias": "norm.bias",
}
_TRANSFORMERS_PARTS = {
    "attention.output.dense": "attn.proj",
    "intermediate.dense": "mlp.fc1",
    "output.dense": "mlp.fc2",
    "layernorm_before": "norm1",
    "layernorm_after": "norm2",
}


def transformers_prefix(tensors: Mapping[str, Tensor]) -> str | None:
    found = (p for p in ("vit.", "") if f"{p}encoder.layer.0.layernorm_before.weight" in tensors)
    return next(found, None)
