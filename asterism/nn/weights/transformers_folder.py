"""Networks of the transformers library: tensors, config.json and preprocessor_config.json become a `Layout`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from asterism.errors import UserError
from asterism.nn.positions import Resampling
from asterism.nn.weights import dinov3
from asterism.nn.weights.checkpoint_file import CheckpointFile
from asterism.nn.weights.description import Description, activation_named
from asterism.nn.weights.encoder_weights import Layout, Size, size_of, usual_activation, usual_heads
from asterism.nn.weights.transformers_names import (
    dinov3_prefix,
    renamed_tower,
    renamed_vit,
    tower_prefix,
    under,
    vit_prefix,
)
from asterism.ops.normalise import IMAGENET_MEAN, IMAGENET_STD, Triple

_LARGEST = 1 << 14  # pixels per side
_HALF: Triple = (0.5, 0.5, 0.5)
_CLIP_MEAN: Triple = (0.48145466, 0.4578275, 0.40821073)
_CLIP_STD: Triple = (0.26862954, 0.26130258, 0.27577711)

_VITS: set[Size] = {(192, 12, 16), (384, 12, 16), (768, 12, 16), (768, 12, 32), (1024, 24, 16), (1280, 32, 14)}
_DINOV2: set[Size] = {(384, 12, 14), (768, 12, 14), (1024, 24, 14), (1536, 40, 14)}
_CLIPS: set[Size] = {(768, 12, 16), (768, 12, 32), (1024, 24, 14), (1280, 32, 14)}
_SIGLIPS: set[Size] = {(768, 12, 16), (1024, 24, 16), (1152, 27, 14), (1152, 27, 16)}


def recognises(file: CheckpointFile) -> bool:
    return any(find(file.tensors) is not None for find in (vit_prefix, tower_prefix, dinov3_prefix))


def layout(file: CheckpointFile) -> Layout:
    if (prefix := dinov3_prefix(file.tensors)) is not None:
        return dinov3.from_transformers(file, under(file.tensors, prefix), _config(file), _said(file))
    if (prefix := tower_prefix(file.tensors)) is not None:
        return _tower(file, prefix)
    return _vit(file, vit_prefix(file.tensors) or "")


def _vit(file: CheckpointFile, prefix: str) -> Layout:
    """ViT, ViT-MAE, Dinov2 and Dinov2 with registers."""
    own = under(file.tensors, prefix)
    tensors, unknown = renamed_vit(own)
    if unknown:
        raise dinov3.unexpected(file, prefix + unknown[0])
    token = own.get("embeddings.mask_token")
    size, kind = size_of(tensors), _config(file).get("model_type")
    scaled = "blocks.0.ls1.gamma" in tensors
    supervised = kind == "vit"
    said, activation = _said(file), usual_activation(tensors)
    if activation == "silu":  # a gated MLP ignores hidden_act
        said = replace(said, activation="silu")
    mean, std = (_HALF, _HALF) if supervised else (IMAGENET_MEAN, IMAGENET_STD)
    usual = Description(usual_heads(size[0]), 1e-6 if scaled else 1e-12, activation, "class", mean, std)
    known_kind = scaled or kind is not None
    resampling: Resampling = "antialiased" if "reg_token" in tensors else "plain"
    if "reg_token" in tensors and not tensors["reg_token"].numel():  # a model of that class without registers
        del tensors["reg_token"]
    if "reg_token" in tensors:  # appended after positions were added to the class token and the patches
        tensors["cls_token"] = tensors["cls_token"] + tensors["pos_embed"][:, :1]
        tensors["pos_embed"] = tensors["pos_embed"][:, 1:]
    return Layout(
        tensors=tensors,
        said=said,
        usual=usual,
        certain=_ALL if known_kind and size in (_DINOV2 if scaled else _VITS) else frozenset(),
        resampling=resampling,
        mask_token=None if token is None else token.reshape(1, -1),
    )


def _tower(file: CheckpointFile, prefix: str) -> Layout:
    """The vision models of CLIP, which has a class token, and SigLIP, which pools by attention.

    Patches get the final norm like the class token, as in timm; transformers returns CLIP's without it.
    """
    tensors, unknown = renamed_tower(under(file.tensors, prefix))
    if unknown:
        raise dinov3.unexpected(file, prefix + unknown[0])
    size, clip, said = size_of(tensors), "cls_token" in tensors, _said(file)
    heads = usual_heads(size[0])
    pooled = any(name.startswith("attn_pool.") for name in tensors)
    if clip:
        usual = Description(heads, 1e-5, "quick_gelu", "class", _CLIP_MEAN, _CLIP_STD)
        certain = _ALL - {"activation"}  # models of other groups have the same tensors and plain GELU
    else:
        usual = Description(heads or size[0] // 72, 1e-6, "gelu_tanh", "attention" if pooled else "mean", _HALF, _HALF)
        certain = _ALL
        said = replace(said, pooling="attention" if pooled else "mean")
    return Layout(
        tensors=tensors,
        said=said,
        usual=usual,
        certain=certain if size in (_CLIPS if clip else _SIGLIPS) else frozenset(),
        resampling="plain",
        arguments={"global_pool": "map"} if pooled else {},
    )


_ALL = frozenset({"heads", "eps", "activation", "pooling", "mean", "std"})


def _config(file: CheckpointFile) -> Mapping[str, Any]:
    """The settings of the vision model; models with text have one section for each."""
    vision = file.config.get("vision_config", file.config)
    return vision if isinstance(vision, Mapping) else {}


def _said(file: CheckpointFile) -> Description:
    """What config.json and preprocessor_config.json state."""
    config = _config(file)
    mean, std = _pixels(file)
    return Description(
        heads=_number(file, config, "num_attention_heads", int),
        eps=_number(file, config, "layer_norm_eps", float),
        activation=activation_named(file.path, config.get("hidden_act")),
        pooling="class" if "num_attention_heads" in config else None,
        mean=mean,
        std=std,
        image_size=_crop(file) or _side(config.get("image_size")),
    )


def _number(file: CheckpointFile, config: Mapping[str, Any], key: str, kind: type) -> Any:
    value = config.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise UserError(f"{file.path.with_name('config.json')}: {key} = {value!r}; expected a positive number")
    return kind(value)


def _pixels(file: CheckpointFile) -> tuple[Triple | None, Triple | None]:
    """Mean and deviation of RGB in [0, 1]; a factor other than 1/255 is part of them."""
    values = file.preprocessor
    if not values:
        return None, None
    normalised = values.get("do_normalize", True)
    mean: Any = values.get("image_mean") if normalised else [0.0] * 3
    std: Any = values.get("image_std") if normalised else [1.0] * 3
    if not (_are_numbers(mean) and _are_numbers(std) and min(std) > 0):
        if mean is None and std is None:
            return None, None
        raise UserError(
            f"{file.path.with_name('preprocessor_config.json')}: image_mean = {mean!r}, image_std = {std!r}; expected "
            "three numbers each"
        )
    factor = values.get("rescale_factor")
    scale = 255 * float(factor) if values.get("do_rescale", True) and factor else 1.0
    scale = 1.0 if abs(scale - 1) < 1e-3 else scale
    centre, width = ([float(number) / scale for number in numbers] for numbers in (mean, std))
    return (centre[0], centre[1], centre[2]), (width[0], width[1], width[2])


def _are_numbers(values: Any) -> bool:
    return isinstance(values, list | tuple) and len(values) == 3 and all(isinstance(v, int | float) for v in values)


def _crop(file: CheckpointFile) -> int | None:
    """The side of the square that the preprocessor makes."""
    values = file.preprocessor
    if values.get("do_center_crop") and (side := _side(values.get("crop_size"))) is not None:
        return side
    return _side(values.get("size"))


def _side(size: Any) -> int | None:
    """The side of a square size; None for others."""
    if isinstance(size, Mapping):
        size = [size.get("height"), size.get("width")]
    if isinstance(size, list | tuple):
        size = size[0] if len(size) == 2 and size[0] == size[1] else None
    return size if isinstance(size, int) and not isinstance(size, bool) and 0 < size <= _LARGEST else None
