"""The families of published weights: how to recognise each, and timm's names for its tensors.

To add one, write a function that converts a `CheckpointFile` into `EncoderWeights` and add a `Family` to `FAMILIES`;
the first that recognises a file reads it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from asterism.errors import UserError, unknown
from asterism.nn.backbone import Architecture
from asterism.nn.encoder import IMAGENET_MEAN, IMAGENET_STD, METADATA_KEY, Triple
from asterism.nn.positions import sincos_table
from asterism.nn.weights import stellar
from asterism.nn.weights.checkpoint_file import CheckpointFile
from asterism.nn.weights.encoder_weights import EncoderWeights, Hints, architecture_of
from asterism.nn.weights.transformers_names import from_transformers, transformers_prefix

_HALF: Triple = (0.5, 0.5, 0.5)  # mean and deviation for the supervised ViTs of transformers


@dataclass(frozen=True)
class Family:
    """A naming scheme for tensors."""

    name: str
    recognises: Callable[[CheckpointFile], bool]
    convert: Callable[[CheckpointFile, Hints], EncoderWeights]


def convert(file: CheckpointFile, hints: Hints, family: str | None) -> EncoderWeights:
    """The weights of a file, read as the named family or as the first that recognises it."""
    if family is not None:
        chosen = next((f for f in FAMILIES if f.name == family), None)
        if chosen is None:
            raise unknown("family of weights", family, [f.name for f in FAMILIES])
    else:
        chosen = next((f for f in FAMILIES if f.recognises(file)), None)
        if chosen is None:
            names = ", ".join(list(file.tensors)[:4])
            raise UserError(
                f"{file.path} is not a checkpoint of a known family ({', '.join(f.name for f in FAMILIES)}); "
                f"its tensors are named {names} …"
            )
    if hints.tokenizer is not None and chosen.name != "stellar":
        raise stellar.no_tokenizer_needed(file.path)
    return chosen.convert(file, hints)


def _own(file: CheckpointFile, hints: Hints) -> EncoderWeights:
    try:
        description = json.loads(file.metadata[METADATA_KEY])
        weights = EncoderWeights(
            architecture=Architecture(**description["architecture"]),
            tensors=file.tensors,
            mean=tuple(description["mean"]),
            std=tuple(description["std"]),
            image_size=description["image_size"],
            step=description["step"],
        )
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{file.path} was written by another version of Asterism: {error!r} in its metadata") from None
    return stellar.with_concepts_beside(file, weights)


def _is_stellar(file: CheckpointFile) -> bool:
    """Whether the file has latent queries and a ViT of transformers; training checkpoints prefix every name."""
    return any(name in file.tensors for name in ("sparse_tokens", "model.sparse_tokens"))


def _transformers(file: CheckpointFile, hints: Hints) -> EncoderWeights:
    activation = file.config.get("hidden_act", "gelu")
    if activation != "gelu":
        raise UserError(f"{file.path}: hidden_act = {activation!r} in its config.json; only gelu is supported")
    prefix = transformers_prefix(file.tensors) or ""
    tensors = from_transformers(file.tensors, prefix)
    supervised = file.config.get("model_type") == "vit"
    heads = hints.heads or file.config.get("num_attention_heads")
    architecture = architecture_of(file, tensors, replace(hints, heads=heads), "plain")
    return EncoderWeights(
        architecture=replace(architecture, layer_norm_eps=float(file.config.get("layer_norm_eps", 1e-12))),
        tensors=tensors,
        mask_token=_mask_token(file.tensors.get(f"{prefix}embeddings.mask_token")),
        mean=_triple(file.preprocessor.get("image_mean"), _HALF if supervised else IMAGENET_MEAN),
        std=_triple(file.preprocessor.get("image_std"), _HALF if supervised else IMAGENET_STD),
    )


def _dinov2(file: CheckpointFile, hints: Hints) -> EncoderWeights:
    tensors, mask_token = _without_mask_token(file.tensors, "mask_token")
    # Their training code stores blocks in chunks (blocks.0.11), their releases do not (blocks.11);
    # the gated MLP of the largest model is named w12 and w3.
    tensors = {re.sub(r"^blocks\.\d+\.(?=\d+\.)", "blocks.", name): tensor for name, tensor in tensors.items()}
    tensors = {n.replace(".mlp.w12.", ".mlp.fc1.").replace(".mlp.w3.", ".mlp.fc2."): t for n, t in tensors.items()}
    if "register_tokens" not in tensors:
        return EncoderWeights(architecture_of(file, tensors, hints, "offset"), tensors, mask_token)
    # Registers are appended after positions were added to the class token and the patches.
    tensors["reg_token"] = tensors.pop("register_tokens")
    tensors["cls_token"] = tensors["cls_token"] + tensors["pos_embed"][:, :1]
    tensors["pos_embed"] = tensors["pos_embed"][:, 1:]
    return EncoderWeights(architecture_of(file, tensors, hints, "antialiased"), tensors, mask_token)


def _mae(file: CheckpointFile, hints: Hints) -> EncoderWeights:
    tensors = {n: t for n, t in file.tensors.items() if not n.startswith("decoder_") and n != "mask_token"}
    return EncoderWeights(architecture_of(file, tensors, hints, "plain"), tensors)


def _is_mae(file: CheckpointFile) -> bool:
    """Whether the file has a decoder or, as public encoders have none, fixed positions."""
    tensors = file.tensors
    return _is_timm_like(file) and ("decoder_pos_embed" in tensors or _is_sincos(tensors["pos_embed"]))


def _is_sincos(positions: Tensor) -> bool:
    dim, side = positions.shape[-1], math.isqrt(positions.shape[1] - 1)
    if dim % 4 or side * side + 1 != positions.shape[1] or positions[0, 0].any():
        return False
    return bool(torch.allclose(positions[0, 1:].float(), sincos_table(dim, (side, side)), atol=1e-3))


def _dino_or_ibot(file: CheckpointFile, hints: Hints) -> EncoderWeights:
    tensors, mask_token = _without_mask_token(file.tensors, "masked_embed")  # iBOT's student has one
    return EncoderWeights(architecture_of(file, tensors, hints, "offset"), tensors, mask_token)


def _timm(file: CheckpointFile, hints: Hints) -> EncoderWeights:
    details = file.config.get("pretrained_cfg", {})
    name = hints.name or file.config.get("architecture")
    tensors = {n: t for n, t in file.tensors.items() if not n.startswith(("head.", "fc_norm.", "attn_pool."))}
    if "patch_embed.proj.weight" in tensors and "layers.0.blocks.0.norm1.weight" in tensors:
        architecture = _swin_architecture(file, name)
    else:
        architecture = architecture_of(file, tensors, replace(hints, name=name), "antialiased")
    return EncoderWeights(
        architecture=architecture,
        tensors=tensors,
        mean=_triple(details.get("mean"), IMAGENET_MEAN),
        std=_triple(details.get("std"), IMAGENET_STD),
    )


def _swin_architecture(file: CheckpointFile, name: str | None) -> Architecture:
    if name is None:
        raise UserError(
            f"{file.path} is a Swin, whose tensors do not show its windows; give name=, its timm model name"
        )
    from asterism.nn.swin import FEATURES_ONLY

    return Architecture(name, FEATURES_ONLY)


def _is_timm(file: CheckpointFile) -> bool:
    timm_only = ("head.weight", "fc_norm.weight", "reg_token", "norm_pre.weight", "layers.0.blocks.0.norm1.weight")
    known = "architecture" in file.config or any(name in file.tensors for name in timm_only)
    return "patch_embed.proj.weight" in file.tensors and (known or "cls_token" not in file.tensors)


def _is_timm_like(file: CheckpointFile) -> bool:
    """Whether the names are those of a timm ViT, as in DINO, iBOT, DINOv2 and MAE files."""
    return {"patch_embed.proj.weight", "pos_embed", "cls_token", "norm.weight"} <= file.tensors.keys()


def _is_dinov2(file: CheckpointFile) -> bool:
    names = file.tensors
    return _is_timm_like(file) and "mask_token" in names and any(name.endswith(".ls1.gamma") for name in names)


FAMILIES = [
    Family("asterism", lambda file: METADATA_KEY in file.metadata, _own),
    Family("stellar", _is_stellar, stellar.from_official),
    Family("transformers", lambda file: transformers_prefix(file.tensors) is not None, _transformers),
    Family("dinov2", _is_dinov2, _dinov2),
    Family("mae", _is_mae, _mae),
    Family("timm", _is_timm, _timm),
    # A bare ViT is assumed to be DINO's or iBOT's, which publish such files; give family="timm" if yours is timm's.
    Family("dino", _is_timm_like, _dino_or_ibot),
]


def _without_mask_token(tensors: Mapping[str, Tensor], name: str) -> tuple[dict[str, Tensor], Tensor | None]:
    return {n: t for n, t in tensors.items() if n != name}, _mask_token(tensors.get(name))


def _mask_token(token: Tensor | None) -> Tensor | None:
    return None if token is None else token.reshape(1, -1)


def _triple(values: Any, default: Triple) -> Triple:
    return default if values is None else (float(values[0]), float(values[1]), float(values[2]))
