"""DINOv3's vision transformers: from the official names and those of transformers to timm's.

Their positions are rotary and have no tensors. Keys have no bias: the official files mask it, transformers has none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from asterism.errors import UserError
from asterism.nn.weights.checkpoint_file import CheckpointFile
from asterism.nn.weights.description import Description
from asterism.nn.weights.encoder_weights import Layout, size_of, usual_activation
from asterism.ops.normalise import IMAGENET_MEAN, IMAGENET_STD

_SIZES = {(192, 12, 16), (384, 12, 16), (768, 12, 16), (1024, 24, 16), (1280, 32, 16), (4096, 40, 16)}
_TEMPERATURE = 100.0  # of the rotary positions
_HEADS = {4096: 32}  # other widths have heads of 64 channels

_ALL = frozenset({"heads", "eps", "activation", "pooling", "mean", "std", "image_size"})


def usual_dinov3(tensors: Mapping[str, Tensor]) -> tuple[Description, frozenset[str]]:
    """The conventions of DINOv3, and which of them hold for certain; tensors have timm's names."""
    dim, _, patch = size = size_of(tensors)
    heads = _HEADS.get(dim, dim // 64 if dim % 64 == 0 else None)
    usual = Description(
        heads,
        1e-5,
        usual_activation(tensors),
        "class",
        IMAGENET_MEAN,
        IMAGENET_STD,
        image_size=max(224 // patch, 1) * patch,
    )
    return usual, _ALL if size in _SIZES else frozenset()


def from_official(file: CheckpointFile, tensors: Mapping[str, Tensor]) -> Layout:
    """The names of facebookresearch/dinov3."""
    if "cls_norm.weight" in tensors:
        raise UserError(
            f"{file.path} has separate norms for class token and patches (cls_norm), which is not supported"
        )
    renamed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if name.startswith(("local_cls_norm.", "rope_embed.")) or name.endswith("bias_mask") or name == "mask_token":
            continue
        if name.endswith("attn.qkv.bias"):
            renamed |= _biases(file, name, tensor * tensors.get(f"{name}_mask", torch.ones(())).nan_to_num(0))
            continue
        renamed[_official_name(name)] = tensor
    usual, certain = usual_dinov3(renamed)
    return Layout(
        tensors=renamed,
        said=Description(),
        usual=usual,
        certain=certain,
        mask_token=_row(tensors.get("mask_token")),
        arguments={"rope_temperature": _temperature(tensors.get("rope_embed.periods"))},
    )


def _official_name(name: str) -> str:
    name = name.replace("storage_tokens", "reg_token").replace("ls1.gamma", "gamma_1").replace("ls2.gamma", "gamma_2")
    return name.replace("mlp.w1.", "mlp.fc1_g.").replace("mlp.w2.", "mlp.fc1_x.").replace("mlp.w3.", "mlp.fc2.")


def from_transformers(
    file: CheckpointFile, tensors: Mapping[str, Tensor], config: Mapping[str, Any], said: Description
) -> Layout:
    """The names of transformers' DINOv3ViTModel, without prefix."""
    renamed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if name in _NAMES:
            renamed[_NAMES[name]] = tensor
        elif match := re.fullmatch(r"(?:model\.)?layer\.(\d+)\.(.+)", name):
            block, part = f"blocks.{match[1]}.", match[2]
            if part in _PARTS:
                renamed[block + _PARTS[part]] = tensor
            elif part == "attention.q_proj.weight":
                kinds = [name.replace("q_proj", f"{kind}_proj") for kind in "qkv"]
                renamed[f"{block}attn.qkv.weight"] = torch.cat([tensors[kind] for kind in kinds])
            elif part == "attention.k_proj.bias":
                _refuse_key_bias(file, name, tensor)
            elif part not in ("attention.k_proj.weight", "attention.v_proj.weight"):
                raise unexpected(file, name)
        elif name not in ("embeddings.mask_token",) and not name.startswith("rope_embeddings."):
            raise unexpected(file, name)
    _fill_biases(renamed)
    usual, certain = usual_dinov3(renamed)
    temperature = config.get("rope_theta") or (config.get("rope_parameters") or {}).get("rope_theta") or _TEMPERATURE
    return Layout(
        tensors=renamed,
        said=said,
        usual=usual,
        certain=certain,
        mask_token=_row(tensors.get("embeddings.mask_token")),
        arguments={"rope_temperature": float(temperature)},
    )


_NAMES = {
    "embeddings.cls_token": "cls_token",
    "embeddings.register_tokens": "reg_token",
    "embeddings.patch_embeddings.weight": "patch_embed.proj.weight",
    "embeddings.patch_embeddings.bias": "patch_embed.proj.bias",
    "norm.weight": "norm.weight",
    "norm.bias": "norm.bias",
}
_PARTS = {
    "layer_scale1.lambda1": "gamma_1",
    "layer_scale2.lambda1": "gamma_2",
    "attention.q_proj.bias": "attn.q_bias",
    "attention.v_proj.bias": "attn.v_bias",
    **{f"norm{number}.{kind}": f"norm{number}.{kind}" for number in (1, 2) for kind in ("weight", "bias")},
    **{f"attention.o_proj.{kind}": f"attn.proj.{kind}" for kind in ("weight", "bias")},
    **{f"mlp.up_proj.{kind}": f"mlp.fc1.{kind}" for kind in ("weight", "bias")},
    **{f"mlp.gate_proj.{kind}": f"mlp.fc1_g.{kind}" for kind in ("weight", "bias")},
    **{f"mlp.down_proj.{kind}": f"mlp.fc2.{kind}" for kind in ("weight", "bias")},
}


def _fill_biases(tensors: dict[str, Tensor]) -> None:
    """Zero for biases that a setting of transformers leaves out; a gated MLP has its own name for the other input."""
    blocks = sorted({name.split(".")[1] for name in tensors if name.startswith("blocks.")})
    any_attention_bias = any(name.endswith((".q_bias", ".v_bias")) for name in tensors)
    for block in (f"blocks.{number}." for number in blocks):
        gated = f"{block}mlp.fc1_g.weight" in tensors
        for kind in ("weight", "bias"):
            if gated and f"{block}mlp.fc1.{kind}" in tensors:
                tensors[f"{block}mlp.fc1_x.{kind}"] = tensors.pop(f"{block}mlp.fc1.{kind}")
        for part in ("attn.proj", "mlp.fc2", *(("mlp.fc1_g", "mlp.fc1_x") if gated else ("mlp.fc1",))):
            weight = tensors[f"{block}{part}.weight"]
            tensors.setdefault(f"{block}{part}.bias", weight.new_zeros(weight.shape[0]))
        if any_attention_bias:
            weight = tensors[f"{block}attn.proj.weight"]
            for bias in ("q_bias", "v_bias"):
                tensors.setdefault(f"{block}attn.{bias}", weight.new_zeros(weight.shape[1]))
    if not tensors.get("reg_token", torch.ones(1)).numel():  # a model without registers stores an empty tensor
        del tensors["reg_token"]


def _biases(file: CheckpointFile, name: str, bias: Tensor) -> dict[str, Tensor]:
    query, key, value = bias.chunk(3)
    _refuse_key_bias(file, name, key)
    place = name.removesuffix("qkv.bias")
    return {f"{place}q_bias": query, f"{place}v_bias": value}


def _refuse_key_bias(file: CheckpointFile, name: str, bias: Tensor) -> None:
    if bias.any():
        raise UserError(f"{file.path}: {name} has a bias for keys, which DINOv3 does not have; expected zeros")


def _temperature(periods: Tensor | None) -> float:
    """The base of the periods base^(k / n), k = 0 … n - 1.

    The official files store them in bfloat16, which leaves two digits of the base.
    """
    if periods is None or len(periods) < 2:
        return _TEMPERATURE
    base = float(periods[-1]) ** (len(periods) / (len(periods) - 1))
    return float(f"{base:.2g}") if periods.dtype is torch.bfloat16 else base


def _row(token: Tensor | None) -> Tensor | None:
    return None if token is None else token.reshape(1, -1)


def unexpected(file: CheckpointFile, name: str) -> UserError:
    return UserError(
        f"{file.path} has a tensor {name!r} that no supported network of transformers has; its features would be wrong "
        "without it. Supported are ViT, ViT-MAE, Dinov2 (with registers), DINOv3 ViT, CLIP's and SigLIP's vision models"
    )
