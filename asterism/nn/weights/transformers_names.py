"""Conversion from the transformers library's names for the parts of a ViT.

Its files use the names of version 4 (`encoder.layer.0.attention.attention.query`); a state dict taken from a model of
version 5 has shorter ones (`layers.0.attention.q_proj`). Both are read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor

_PREFIXES = ("", "vit.", "dinov2.", "dinov2_with_registers.", "dinov3_vit.", "vision_model.", "model.")


def vit_prefix(tensors: Mapping[str, Tensor]) -> str | None:
    """The prefix of a ViT, ViT-MAE or Dinov2; None if there is none of them."""
    parts = ("encoder.layer.0.layernorm_before", "encoder.layer.0.norm1", "layers.0.layernorm_before")
    return _prefix(tensors, *(f"{part}.weight" for part in parts))


def tower_prefix(tensors: Mapping[str, Tensor]) -> str | None:
    """The prefix of the vision model of CLIP or SigLIP."""
    return _prefix(tensors, "embeddings.position_embedding.weight")


def dinov3_prefix(tensors: Mapping[str, Tensor]) -> str | None:
    return _prefix(tensors, "layer.0.layer_scale1.lambda1", "model.layer.0.layer_scale1.lambda1")


def _prefix(tensors: Mapping[str, Tensor], *endings: str) -> str | None:
    return next((prefix for prefix in _PREFIXES for end in endings if f"{prefix}{end}" in tensors), None)


def under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors under a prefix, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def from_transformers(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The ViT under a prefix, from the names of transformers to those of timm; query, key and value are fused."""
    renamed, _ = renamed_vit(under(tensors, prefix))
    return renamed


def renamed_vit(own: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
    """A ViT, ViT-MAE or Dinov2 with timm's names, and the names that it does not have."""
    return _renamed(own, _VIT_NAMES, _VIT_PARTS, r"(?:encoder\.layer|layers)\.(\d+)\.(.+)")


def renamed_tower(own: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
    """A vision model of CLIP or SigLIP with timm's names, and the names that it does not have."""
    renamed, unknown = _renamed(own, _TOWER_NAMES, _TOWER_PARTS, r"encoder\.layers\.(\d+)\.(.+)")
    if "cls_token" in renamed:
        renamed["cls_token"] = renamed["cls_token"].reshape(1, 1, -1)
    if "pos_embed" in renamed:
        renamed["pos_embed"] = renamed["pos_embed"][None]
    for kind in ("weight", "bias"):  # of the attention pooling
        if (fused := own.get(f"head.attention.in_proj_{kind}")) is not None:
            dim = len(fused) // 3
            renamed[f"attn_pool.q.{kind}"], renamed[f"attn_pool.kv.{kind}"] = fused[:dim], fused[dim:]
    return renamed, unknown


def _renamed(
    own: Mapping[str, Tensor], names: Mapping[str, str], parts: Mapping[str, str], block: str
) -> tuple[dict[str, Tensor], list[str]]:
    renamed, unknown = {}, []
    for name, tensor in own.items():
        if name in names:
            renamed[names[name]] = tensor
            continue
        match = re.fullmatch(block, name)
        part, _, kind = match[2].rpartition(".") if match else ("", "", "")
        if match and part in parts:
            renamed[f"blocks.{match[1]}.{parts[part]}.{kind}"] = tensor
        elif match and part in _GAMMAS:
            renamed[f"blocks.{match[1]}.{_GAMMAS[part]}"] = tensor
        elif match and part in _FIRST:
            others = [own[name.replace(part, each)] for each in _FIRST[part][1]]
            renamed[f"blocks.{match[1]}.{_FIRST[part][0]}.{kind}"] = torch.cat([tensor, *others])
        elif not (match and part in _FOLLOWING) and not name.startswith(_UNUSED):
            unknown.append(name)
    return renamed, unknown


_BOTH = ("weight", "bias")


def _with_kinds(names: Mapping[str, str]) -> dict[str, str]:
    return {f"{theirs}.{kind}": f"{ours}.{kind}" for theirs, ours in names.items() for kind in _BOTH}


_VIT_NAMES = {
    "embeddings.cls_token": "cls_token",
    "embeddings.position_embeddings": "pos_embed",
    "embeddings.register_tokens": "reg_token",
    **_with_kinds({"embeddings.patch_embeddings.projection": "patch_embed.proj", "layernorm": "norm"}),
}
_VIT_PARTS = {
    "attention.output.dense": "attn.proj",
    "attention.o_proj": "attn.proj",
    "intermediate.dense": "mlp.fc1",
    "output.dense": "mlp.fc2",
    "mlp.fc1": "mlp.fc1",
    "mlp.fc2": "mlp.fc2",
    "mlp.weights_in": "mlp.fc1",  # gate, then the other input
    "mlp.weights_out": "mlp.fc2",
    "mlp.down_proj": "mlp.fc2",
    "layernorm_before": "norm1",
    "layernorm_after": "norm2",
    "norm1": "norm1",
    "norm2": "norm2",
}
_TOWER_NAMES = {
    "embeddings.class_embedding": "cls_token",
    "embeddings.position_embedding.weight": "pos_embed",
    "head.probe": "attn_pool.latent",
    **_with_kinds(
        {
            "embeddings.patch_embedding": "patch_embed.proj",
            "pre_layrnorm": "norm_pre",  # as transformers spells it
            "post_layernorm": "norm",
            "head.attention.out_proj": "attn_pool.proj",
            "head.layernorm": "attn_pool.norm",
            "head.mlp.fc1": "attn_pool.mlp.fc1",
            "head.mlp.fc2": "attn_pool.mlp.fc2",
        }
    ),
}
_TOWER_PARTS = {
    "layer_norm1": "norm1",
    "layer_norm2": "norm2",
    "mlp.fc1": "mlp.fc1",
    "mlp.fc2": "mlp.fc2",
    "self_attn.out_proj": "attn.proj",
}
_GAMMAS = {"layer_scale1": "ls1.gamma", "layer_scale2": "ls2.gamma"}
# parts that are fused: the first of them → the fused one, and those that follow it
_FIRST = {
    "attention.attention.query": ("attn.qkv", ("attention.attention.key", "attention.attention.value")),
    "attention.q_proj": ("attn.qkv", ("attention.k_proj", "attention.v_proj")),
    "self_attn.q_proj": ("attn.qkv", ("self_attn.k_proj", "self_attn.v_proj")),
    "mlp.gate_proj": ("mlp.fc1", ("mlp.up_proj",)),
}
_FOLLOWING = {part for _, following in _FIRST.values() for part in following}
# Parts without influence on the features, and other networks in the same file.
_UNUSED = (
    "embeddings.mask_token",
    "embeddings.position_ids",
    "head.attention.in_proj_",
    "pooler.",
    "classifier.",
    "decoder.",
    "text_model.",
    "text_projection.",
    "visual_projection.",
    "logit_scale",
    "logit_bias",
)
