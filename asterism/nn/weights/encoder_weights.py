"""Weights to be loaded into an encoder: tensors with timm's names, and the architecture inferred from their shapes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxtyping import Float
from torch import Tensor

from asterism.errors import UserError
from asterism.nn.backbone import Architecture, Backbone
from asterism.nn.encoder import IMAGENET_MEAN, IMAGENET_STD, Encoder, Triple
from asterism.nn.positions import Resampling, table_layout
from asterism.nn.weights.checkpoint_file import CheckpointFile

# Generic model names from which networks are rebuilt; the shapes of their tensors override every size.
_PLAIN_VIT, _SWIGLU_VIT = "vit_base_patch16_224", "vit_giant_patch14_dinov2"

_HEADS = {192: 3, 384: 6, 768: 12, 1024: 16, 1280: 16, 1408: 16, 1536: 24, 1664: 16}  # by width, of the published sizes
_HEAD_WIDTH = 64


@dataclass(frozen=True)
class EncoderWeights:
    """A network's tensors with timm's names, and its image size and statistics."""

    architecture: Architecture
    tensors: Mapping[str, Tensor]
    mask_token: Float[Tensor, "1 d"] | None = None
    mean: Triple = IMAGENET_MEAN
    std: Triple = IMAGENET_STD
    image_size: int | None = None  # None: the size of the position table
    step: int | None = None  # optimiser steps of our run

    def encoder(self, backbone: Backbone) -> Encoder:
        """The encoder around the backbone that holds these weights."""
        encoder = Encoder(backbone, self.mean, self.std, self.image_size)
        encoder.step = self.step
        return encoder


@dataclass(frozen=True)
class Hints:
    """Information that a file may lack."""

    heads: int | None = None
    name: str | None = None  # the timm model the weights belong to
    decoder_heads: int | None = None  # of STELLAR's decoder
    tokenizer: str | Path | None = None  # whose codes STELLAR's decoder predicts, if the file lacks it


def architecture_of(
    file: CheckpointFile, tensors: Mapping[str, Tensor], hints: Hints, resampling: Resampling
) -> Architecture:
    """Every size of a ViT from the shapes of its tensors (timm's names), which do not show the number of heads."""
    try:
        dim, channels, patch, _ = tensors["patch_embed.proj.weight"].shape
        hidden = tensors["blocks.0.mlp.fc1.weight"].shape[0]
        gated = tensors["blocks.0.mlp.fc2.weight"].shape[1] != hidden
        positions = tensors["pos_embed"].shape[1]
    except KeyError as error:
        raise UserError(f"{file.path} lacks the tensor {error.args[0]!r} of a vision transformer") from None
    if channels != 3:
        raise UserError(f"{file.path} is a network for images of {channels} channels; only RGB is supported")
    if "norm_pre.weight" in tensors and hints.name is None:
        raise UserError(f"{file.path} does not say which network it is (it has a norm before its blocks); give name=")
    class_token = "cls_token" in tensors
    registers = tensors["reg_token"].shape[1] if "reg_token" in tensors else 0
    side, no_embed_class = table_layout(positions, int(class_token) + registers, bool(registers))
    arguments: dict[str, Any] = {
        "img_size": side * patch,
        "patch_size": patch,
        "embed_dim": dim,
        "depth": 1 + max(int(name.split(".")[1]) for name in tensors if name.startswith("blocks.")),
        "num_heads": hints.heads or _usual_heads(file, dim),
        "mlp_ratio": _ratio(hidden, dim),
        "qkv_bias": "blocks.0.attn.qkv.bias" in tensors,
        "qk_norm": "blocks.0.attn.q_norm.weight" in tensors,
        "init_values": 1e-5 if "blocks.0.ls1.gamma" in tensors else None,
        "class_token": class_token,
        "reg_tokens": registers,
        "no_embed_class": no_embed_class,
    }
    from asterism.nn.vit import FEATURES_ONLY

    name = hints.name or (_SWIGLU_VIT if gated else _PLAIN_VIT)
    return Architecture(name, arguments | FEATURES_ONLY, resampling)


def _usual_heads(file: CheckpointFile, dim: int) -> int:
    if dim in _HEADS:
        return _HEADS[dim]
    if dim % _HEAD_WIDTH == 0:
        return dim // _HEAD_WIDTH
    raise UserError(f"{file.path} is a network of width {dim} and does not state its number of heads; give heads=")


def _ratio(hidden: int, dim: int) -> float:
    """The MLP's ratio, such that timm's int(dim · ratio) is exactly the hidden width."""
    ratio = hidden / dim
    return ratio if int(dim * ratio) == hidden else math.nextafter(ratio, math.inf)
