"""Weights to be loaded into an encoder: tensors with timm's names, and the architecture inferred from their shapes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from jaxtyping import Float
from torch import Tensor

from asterism.errors import UserError
from asterism.nn.backbone import Architecture, Backbone
from asterism.nn.encoder import Encoder
from asterism.nn.positions import Resampling, table_layout
from asterism.nn.timm_arguments import Activation
from asterism.nn.weights.checkpoint_file import CheckpointFile
from asterism.nn.weights.description import Description, WeightsOptions, guesses_in
from asterism.ops.normalise import IMAGENET_MEAN, IMAGENET_STD, Triple

# Generic model names from which networks are rebuilt; the shapes of their tensors override every size.
_PLAIN_VIT, _SWIGLU_VIT, _ROPE_VIT = "vit_base_patch16_224", "vit_giant_patch14_dinov2", "vit_small_patch16_dinov3"
_EPS = {_PLAIN_VIT: 1e-6, _SWIGLU_VIT: 1e-6, _ROPE_VIT: 1e-5}  # of these models in timm
_ACTIVATION = {_PLAIN_VIT: "gelu", _SWIGLU_VIT: "silu"}

_HEADS = {192: 3, 384: 6, 768: 12, 1024: 16, 1280: 16, 1408: 16, 1536: 24, 1664: 16}  # by width, of the published sizes
_HEAD_WIDTH = 64

Size = tuple[int, int, int]  # width, blocks, pixels per side of a patch


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
    said: Description = field(default_factory=Description)  # what the user or the file stated
    guesses: Mapping[str, Any] = field(default_factory=dict)
    asked: str | None = None  # what nothing states and cannot be guessed, with the reason

    def encoder(self, backbone: Backbone) -> Encoder:
        """The encoder around the backbone that holds these weights."""
        encoder = Encoder(backbone, self.mean, self.std, self.image_size)
        encoder.step = self.step
        return encoder


@dataclass(frozen=True)
class Layout:
    """A file's network with timm's names for its tensors, and what is known about the rest."""

    tensors: Mapping[str, Tensor]
    said: Description  # in or next to the file
    usual: Description  # the conventions of the family
    certain: frozenset[str] = frozenset()  # conventions without exceptions, for a network of this size
    resampling: Resampling = "antialiased"
    mask_token: Float[Tensor, "1 d"] | None = None
    name: str | None = None  # the timm model, if the file names it
    arguments: Mapping[str, Any] = field(default_factory=dict)  # of timm, that shapes do not show


def weights_of(file: CheckpointFile, layout: Layout, options: WeightsOptions) -> EncoderWeights:
    """The weights of a file: every value from the first source that states it, else the usual one."""
    name = options.name or layout.name
    usual, certain = layout.usual, layout.certain
    said = options.description.over(layout.said)
    stated = said
    if name is not None:
        named, likely = _named_description(name, _dim(file, layout.tensors))
        if "pos_embed" in layout.tensors:  # the table shows the size of this file's images
            named = replace(named, image_size=None)
        stated = stated.over(named)
        usual = replace(usual, eps=None, activation=None)  # the model has its own
        usual = usual.over(likely) if "mean" in certain else likely.over(usual)
        certain |= {"pooling"}
    found = stated.over(usual)
    asked = None
    width = _dim(file, layout.tensors)
    if found.heads is not None and width % found.heads and _has_blocks(layout.tensors):
        raise UserError(f"heads = {found.heads} does not divide {width}, the width of the network in {file.path}")
    if found.heads is None and _has_blocks(layout.tensors):
        other = "" if name is None else f", which {name} is not,"
        asked = f"{file.path} is a network of width {width}{other} and does not state its number of heads; give heads="
    architecture = _architecture(file, layout, found, name)
    return EncoderWeights(
        architecture=architecture,
        tensors=layout.tensors,
        mask_token=layout.mask_token,
        mean=found.mean or IMAGENET_MEAN,
        std=found.std or IMAGENET_STD,
        image_size=_usable(stated, layout, architecture),
        said=said,
        asked=asked,
        guesses=guesses_in(stated, usual, certain),
    )


def _named_description(name: str, dim: int) -> tuple[Description, Description]:
    """What the name states, and what is likely: without a tag (`name.tag`), weights of a model may differ in pixels.

    dim: the width of the weights, which may be another than the named model's; its heads then say nothing.
    """
    from asterism.nn.timm_models import network_outline, pixel_settings

    outline = network_outline(name)
    heads = outline.heads if outline.dim == dim else None
    settings = pixel_settings(name)
    pixels = {(each.mean, each.std) for each in settings}
    if not settings:
        return Description(heads=heads), Description()
    first = settings[0]
    stated = Description(heads=heads, image_size=first.image_size)
    likely = Description(mean=_rgb(first.mean), std=_rgb(first.std))
    return (likely.over(stated), Description()) if len(pixels) == 1 else (stated, likely)


def _rgb(values: tuple[float, ...]) -> Triple:
    red, green, blue = values
    return red, green, blue


def described(weights: EncoderWeights, options: WeightsOptions) -> EncoderWeights:
    """Weights that describe themselves completely, with the user's changes."""
    from asterism.nn.timm_models import family_of

    name = weights.architecture.name
    if family_of(name) == "swin":
        _refuse_for_swin(name, options.description)
    architecture = with_values(weights.architecture, options.description)
    return replace(
        weights,
        architecture=architecture,
        mean=options.mean or weights.mean,
        std=options.std or weights.std,
        image_size=options.image_size or weights.image_size,
    )


def with_values(architecture: Architecture, values: Description) -> Architecture:
    """The architecture with the stated heads, epsilon, activation and pooling."""
    arguments = dict(architecture.arguments)
    if values.heads is not None:
        arguments["num_heads"] = values.heads
    own = arguments.get("act_layer", _ACTIVATION.get(architecture.name))
    if values.activation not in (None, own) and architecture.name != _ROPE_VIT:
        arguments["act_layer"] = values.activation
    eps = architecture.layer_norm_eps if values.eps is None else values.eps
    if eps == _EPS.get(architecture.name):
        eps = None
    pooling = values.pooling or architecture.pooling
    return replace(architecture, arguments=arguments, layer_norm_eps=eps, pooling=pooling)


def usual_heads(dim: int) -> int | None:
    """The heads of a published network of this width, else heads of 64 channels; None if neither fits."""
    if dim in _HEADS:
        return _HEADS[dim]
    return dim // _HEAD_WIDTH if dim % _HEAD_WIDTH == 0 else None


def usual_activation(tensors: Mapping[str, Tensor]) -> Activation:
    """The activation of every published network with a gated MLP, or without one."""
    return "silu" if "blocks.0.mlp.fc1_g.weight" in tensors or is_gated(tensors) else "gelu"


def size_of(tensors: Mapping[str, Tensor]) -> Size:
    """Width, depth and patch size, from tensors with timm's names."""
    dim, _, patch = _patch_shape(tensors)
    return dim, len({name.split(".")[1] for name in tensors if name.startswith("blocks.")}), patch


def _architecture(file: CheckpointFile, layout: Layout, found: Description, name: str | None) -> Architecture:
    from asterism.nn.swin import FEATURES_ONLY as SWIN
    from asterism.nn.timm_models import family_of

    tensors = layout.tensors
    kind = family_of(name) if name is not None else "rope" if "blocks.0.gamma_1" in tensors else "vit"
    if kind == "swin":
        if "layers.0.blocks.0.norm1.weight" not in tensors:
            raise UserError(f"{file.path} does not have the tensors of {name}, which is a Swin; give another name=")
        _refuse_for_swin(str(name), found)
        return Architecture(str(name), SWIN, layer_norm_eps=found.eps)
    if kind == "rope":
        arguments = _rope_arguments(file, tensors, found.image_size, name is None)
    else:
        arguments = _vit_arguments(file, tensors)
    generic = _ROPE_VIT if kind == "rope" else _SWIGLU_VIT if is_gated(tensors) else _PLAIN_VIT
    from asterism.nn.vit import FEATURES_ONLY

    architecture = Architecture(name or generic, {**arguments, **FEATURES_ONLY, **layout.arguments}, layout.resampling)
    if kind == "rope" and found.activation not in (None, usual_activation(tensors)):
        raise UserError(
            f"{file.path}: activation = {found.activation}; a network with rotary positions and these tensors has "
            f"{usual_activation(tensors)}"
        )
    return with_values(architecture, found)


def _refuse_for_swin(name: str, values: Description) -> None:
    given = [word for word in ("heads", "activation", "eps", "pooling") if getattr(values, word) is not None]
    if given:
        raise UserError(f"{name} is a Swin, and its name states {given[0]}=; leave it out")


def _vit_arguments(file: CheckpointFile, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    common, side, no_embed_class = _common_arguments(file, tensors)
    if side is None:
        raise UserError(f"{file.path} lacks the tensor 'pos_embed' of a vision transformer")
    if "norm_pre.weight" in tensors:
        common["pre_norm"] = True
    return common | {
        "img_size": side * common["patch_size"],
        "mlp_ratio": _ratio(tensors["blocks.0.mlp.fc1.weight"].shape[0], common["embed_dim"]),
        "qkv_bias": "blocks.0.attn.qkv.bias" in tensors,
        "qk_norm": "blocks.0.attn.q_norm.weight" in tensors,
        "init_values": 1e-5 if "blocks.0.ls1.gamma" in tensors else None,
        "reg_tokens": _registers(tensors),
        "no_embed_class": no_embed_class,
    }


def _rope_arguments(
    file: CheckpointFile, tensors: Mapping[str, Tensor], image_size: int | None, generic: bool
) -> dict[str, Any]:
    """generic: whether the network is built from a generic name, which has no gate of its own."""
    common, side, _ = _common_arguments(file, tensors)
    patch, biases = common["patch_size"], ("q_bias", "qkv.bias", "q_proj.bias")
    size = side * patch if side is not None else _rounded(image_size or 224, patch)
    arguments = common | {
        "img_size": size,
        "mlp_ratio": _ratio(tensors["blocks.0.mlp.fc2.weight"].shape[1], common["embed_dim"]),
        "qkv_bias": any(f"blocks.0.attn.{bias}" in tensors for bias in biases),
        "init_values": 1e-5 if "blocks.0.gamma_1" in tensors else None,
        "num_reg_tokens": _registers(tensors),
    }
    if generic and "blocks.0.mlp.fc1_g.weight" in tensors:
        arguments |= {"swiglu_mlp": True, "swiglu_align_to": 1}
    return arguments


def _common_arguments(
    file: CheckpointFile, tensors: Mapping[str, Tensor]
) -> tuple[dict[str, Any], int | None, bool | None]:
    """Sizes that all vision transformers have; the side of the position table and whether it has patches only."""
    dim, channels, patch = _patch_shape(tensors)
    if channels != 3:
        raise UserError(f"{file.path} is a network for images of {channels} channels; only RGB is supported")
    blocks = {name.split(".")[1] for name in tensors if name.startswith("blocks.")}
    absent = next((number for number in range(len(blocks)) if str(number) not in blocks), None)
    if absent is not None or not blocks:
        raise UserError(f"{file.path} has {len(blocks)} blocks, but lacks the tensors of 'blocks.{absent or 0}'")
    class_token = "cls_token" in tensors
    arguments: dict[str, Any] = {
        "patch_size": patch,
        "embed_dim": dim,
        "depth": len(blocks),
        "class_token": class_token,
    }
    if "pos_embed" not in tensors:
        return arguments, None, None
    table = tensors["pos_embed"]
    if table.ndim != 3 or table.shape[2] != dim:
        raise UserError(f"pos_embed has the shape {list(table.shape)} in {file.path}; expected [1, positions, {dim}]")
    registers = _registers(tensors)
    try:
        side, patches_only = table_layout(table.shape[1], int(class_token) + registers, bool(registers))
    except UserError as error:
        raise UserError(f"{file.path}: {error}") from None
    return arguments, side, patches_only


def _patch_shape(tensors: Mapping[str, Tensor]) -> tuple[int, int, int]:
    """Width, channels of the image and patch size."""
    shape = list(tensors["patch_embed.proj.weight"].shape)
    if len(shape) != 4 or shape[2] != shape[3]:
        raise UserError(f"the tensor of the patch embedding has the shape {shape}; expected [width, 3, patch, patch]")
    return shape[0], shape[1], shape[2]


def _usable(stated: Description, layout: Layout, architecture: Architecture) -> int | None:
    """The stated image size. One that is next to the file and does not divide into patches is ignored."""
    patch = architecture.arguments.get("patch_size")
    size = stated.image_size
    if size is None or patch is None or size % patch == 0 or size != layout.said.image_size:
        return size
    return None


def _registers(tensors: Mapping[str, Tensor]) -> int:
    return tensors["reg_token"].shape[1] if "reg_token" in tensors else 0


def is_gated(tensors: Mapping[str, Tensor]) -> bool:
    """Whether the first layer of the MLPs has two outputs, of which one gates the other."""
    inner, outer = tensors["blocks.0.mlp.fc1.weight"], tensors["blocks.0.mlp.fc2.weight"]
    return outer.shape[1] != inner.shape[0]


def _has_blocks(tensors: Mapping[str, Tensor]) -> bool:
    return any(name.startswith("blocks.") for name in tensors)


def _dim(file: CheckpointFile, tensors: Mapping[str, Tensor]) -> int:
    if "patch_embed.proj.weight" not in tensors:
        raise UserError(f"{file.path} lacks the tensor 'patch_embed.proj.weight' of a vision transformer")
    return tensors["patch_embed.proj.weight"].shape[0]


def _rounded(size: int, patch: int) -> int:
    """The nearest size that divides into patches."""
    return max(1, round(size / patch)) * patch


def _ratio(hidden: int, dim: int) -> float:
    """The MLP's ratio, such that timm's int(dim · ratio) is exactly the hidden width."""
    ratio = hidden / dim
    return ratio if int(dim * ratio) == hidden else math.nextafter(ratio, math.inf)
