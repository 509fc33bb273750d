"""The families of published weights: how to recognise each, and timm's names for its tensors.

To add one, write a function that converts a `CheckpointFile` into a `Layout` and add a `Family` to `FAMILIES`; the
first that recognises a file reads it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from asterism.errors import UserError, unknown
from asterism.nn.backbone import Architecture
from asterism.nn.positions import sincos_table
from asterism.nn.safetensors_file import METADATA_KEY
from asterism.nn.weights import dinov3, stellar, transformers_folder
from asterism.nn.weights.checkpoint_file import CheckpointFile
from asterism.nn.weights.description import Description, WeightsOptions
from asterism.nn.weights.encoder_weights import (
    EncoderWeights,
    Layout,
    Size,
    described,
    size_of,
    usual_activation,
    usual_heads,
    weights_of,
)
from asterism.nn.weights.metadata import EncoderFile, checked, description_in
from asterism.ops.normalise import IMAGENET_MEAN, IMAGENET_STD, Triple


@dataclass(frozen=True)
class Family:
    """A naming scheme for tensors."""

    name: str
    recognises: Callable[[CheckpointFile], bool]
    convert: Callable[[CheckpointFile, WeightsOptions], EncoderWeights]


def convert(file: CheckpointFile, options: WeightsOptions) -> EncoderWeights:
    """The weights of a file, read as the named family or as the first that recognises it."""
    chosen = _chosen(file, options.family)
    if options.tokenizer is not None and chosen.name != "stellar":
        raise stellar.no_tokenizer_needed(file.path)
    try:
        return chosen.convert(file, options)
    except KeyError as error:
        raise UserError(
            f"{file.path} lacks the tensor {error.args[0]!r} of a checkpoint of {chosen.name}; if it has it under "
            "another name, rename it with keys="
        ) from None
    except (ValueError, IndexError, TypeError, AttributeError, RuntimeError) as error:  # shapes that do not fit
        raise UserError(f"the tensors of {file.path} do not fit a checkpoint of {chosen.name}: {error}") from None


def _chosen(file: CheckpointFile, family: str | None) -> Family:
    if family is not None:
        named = next((f for f in FAMILIES if f.name == family), None)
        if named is None:
            raise unknown("family of weights", family, [f.name for f in FAMILIES])
        return named
    found = next((f for f in FAMILIES if f.recognises(file)), None)
    if found is None:
        names = ", ".join(list(file.tensors)[:4])
        raise UserError(
            f"{file.path} is not a checkpoint of a known family ({', '.join(f.name for f in FAMILIES)}); "
            f"its tensors are named {names} …. Encoders are vision transformers and Swins (docs/weights.md); if only "
            "the names differ from timm's, rename them with keys="
        )
    return found


def _own(file: CheckpointFile, options: WeightsOptions) -> EncoderWeights:
    description = checked(EncoderFile, description_in(file.metadata, file.path), file.path)
    weights = EncoderWeights(
        architecture=Architecture(**description["architecture"]),
        tensors=file.tensors,
        mean=tuple(description["mean"]),
        std=tuple(description["std"]),
        image_size=description["image_size"],
        step=description["step"],
    )
    arguments = weights.architecture.arguments
    heads = arguments.get("num_heads")
    said = Description(heads=heads if isinstance(heads, int) else None, mean=weights.mean, std=weights.std)
    return stellar.with_concepts_beside(file, described(replace(weights, said=said), options))


def _is_stellar(file: CheckpointFile) -> bool:
    """Whether the file has latent queries and a ViT of transformers; training checkpoints prefix every name."""
    return any(name in file.tensors for name in ("sparse_tokens", "model.sparse_tokens"))


def _layout_family(make: Callable[[CheckpointFile], Layout]) -> Callable[[CheckpointFile, WeightsOptions], Any]:
    return lambda file, options: weights_of(file, make(file), options)


# Sizes that each family published: width, blocks, patch. Only for these are its conventions certain.
_S16, _S8, _B16, _B8, _L16 = (384, 12, 16), (384, 12, 8), (768, 12, 16), (768, 12, 8), (1024, 24, 16)
_DINO_SIZES: set[Size] = {_S16, _S8, _B16, _B8, _L16}  # also iBOT, MaSSL, SOP, CrIBo
_FLSL_SIZES: set[Size] = {_S16, _S8, _B16}
_MAE_SIZES: set[Size] = {_B16, _L16, (1280, 32, 14)}
_DINOV2_SIZES: set[Size] = {(384, 12, 14), (768, 12, 14), (1024, 24, 14), (1536, 40, 14)}

_ALL = frozenset({"heads", "eps", "activation", "pooling", "mean", "std"})


def _conventions(tensors: Mapping[str, Tensor], published: set[Size]) -> dict[str, Any]:
    """What all files of self-supervised ViTs have in common."""
    size = size_of(tensors)
    pooling = "class" if "cls_token" in tensors else "mean"
    usual = Description(usual_heads(size[0]), 1e-6, usual_activation(tensors), pooling, IMAGENET_MEAN, IMAGENET_STD)  # type: ignore[arg-type]
    return {"said": Description(), "usual": usual, "certain": _ALL if size in published else frozenset()}


def _dinov2(file: CheckpointFile) -> Layout:
    tensors, mask_token = _without_mask_token(file.tensors, "mask_token")
    # Their training code stores blocks in chunks (blocks.0.11), their releases do not (blocks.11);
    # the gated MLP of the largest model is named w12 and w3.
    tensors = {re.sub(r"^blocks\.\d+\.(?=\d+\.)", "blocks.", name): tensor for name, tensor in tensors.items()}
    tensors = {n.replace(".mlp.w12.", ".mlp.fc1.").replace(".mlp.w3.", ".mlp.fc2."): t for n, t in tensors.items()}
    if "register_tokens" in tensors:
        # Registers are appended after positions were added to the class token and the patches.
        tensors["reg_token"] = tensors.pop("register_tokens")
        tensors["cls_token"] = tensors["cls_token"] + tensors["pos_embed"][:, :1]
        tensors["pos_embed"] = tensors["pos_embed"][:, 1:]
    conventions = _conventions(tensors, _DINOV2_SIZES)
    resampling = "antialiased" if "reg_token" in tensors else "offset"
    return Layout(tensors, **conventions, resampling=resampling, mask_token=mask_token)  # type: ignore[arg-type]


def _mae(file: CheckpointFile) -> Layout:
    tensors = {n: t for n, t in file.tensors.items() if not n.startswith("decoder_") and n != "mask_token"}
    return Layout(tensors, **_conventions(tensors, _MAE_SIZES), resampling="plain")


def _is_mae(file: CheckpointFile) -> bool:
    """Whether the file has a decoder or, as public encoders have none, fixed positions."""
    tensors = file.tensors
    return _is_timm_like(file) and ("decoder_pos_embed" in tensors or _is_sincos(tensors["pos_embed"]))


def _is_sincos(positions: Tensor) -> bool:
    if positions.ndim != 3:
        return False
    dim, side = positions.shape[-1], math.isqrt(max(positions.shape[1] - 1, 0))
    if dim % 4 or side * side + 1 != positions.shape[1] or positions[0, 0].any():
        return False
    return bool(torch.allclose(positions[0, 1:].float(), sincos_table(dim, (side, side)), atol=1e-3))


def _dino_or_ibot(file: CheckpointFile, options: WeightsOptions) -> EncoderWeights:
    tensors, mask_token = _without_mask_token(file.tensors, "masked_embed")  # iBOT's student has one
    if options.family is None and options.name is None and _is_square(tensors["pos_embed"].shape[1]):
        raise UserError(
            f"{file.path} has a class token without a position, as FLSL, which does not use it, and some models of "
            "timm, which do; give family=flsl or family=timm"
        )
    conventions = _conventions(tensors, _DINO_SIZES)
    layout = Layout(tensors, **conventions, resampling="offset", mask_token=mask_token)
    weights = weights_of(file, layout, options)
    named = options.family is not None or options.name is not None
    if named or file.trained_pair or conventions["certain"]:
        return weights
    return replace(weights, guesses={**weights.guesses, "family": "dino"})


def _is_flsl(file: CheckpointFile) -> bool:
    """Whether the class token has no row in the position table, in a checkpoint of student and teacher."""
    tensors = file.tensors
    if not (_is_timm_like(file) and file.trained_pair) or any(name.endswith("ls1.gamma") for name in tensors):
        return False
    return _is_square(tensors["pos_embed"].shape[1])


def _is_square(number: int) -> bool:
    return math.isqrt(number) ** 2 == number


def _flsl(file: CheckpointFile) -> Layout:
    """FLSL keeps DINO's class token in the file but never uses it: positions are those of the patches."""
    tensors = {name: tensor for name, tensor in file.tensors.items() if name != "cls_token"}
    return Layout(tensors, **_conventions(tensors, _FLSL_SIZES), resampling="offset")


def _is_official_dinov3(file: CheckpointFile) -> bool:
    names = file.tensors
    return "pos_embed" not in names and ("storage_tokens" in names or "rope_embed.periods" in names)


def _timm(file: CheckpointFile) -> Layout:
    details = file.config.get("pretrained_cfg") or {}
    name = file.config.get("architecture")
    tensors = {n: t for n, t in file.tensors.items() if not n.startswith("head.")}
    said = Description(
        mean=_triple(file, details, "mean"),
        std=_triple(file, details, "std"),
        heads=_heads(file),
    )
    arguments: dict[str, Any] = {}
    if any(n.startswith("attn_pool.") for n in tensors):
        arguments, said = {"global_pool": "map"}, replace(said, pooling="attention")
    elif "fc_norm.weight" in tensors and "norm.weight" not in tensors:
        arguments, said = {"global_pool": "avg"}, replace(said, pooling="mean")
    if "blocks.0.gamma_1" in tensors and "pos_embed" not in tensors:
        usual, certain = dinov3.usual_dinov3(tensors)
        return Layout(tensors, said, usual, certain, name=name, arguments=arguments)
    if "layers.0.blocks.0.norm1.weight" in tensors:
        usual, certain = Description(mean=IMAGENET_MEAN, std=IMAGENET_STD), frozenset[str]()
    else:
        published = {_S16, _S8, _B16, _B8, _L16, (192, 12, 16), *_MAE_SIZES, *_DINOV2_SIZES}
        found = _conventions(tensors, published)
        usual, certain = found["usual"], found["certain"] - {"mean", "std"}  # these differ among timm's models
    return Layout(tensors, said, usual, certain, name=name, arguments=arguments)


def _from_timm(file: CheckpointFile, options: WeightsOptions) -> EncoderWeights:
    if options.name is None and "architecture" not in file.config:
        if "layers.0.blocks.0.norm1.weight" in file.tensors:
            raise UserError(
                f"{file.path} is a Swin, whose tensors do not show its windows; give name=, its timm model name"
            )
        if "norm_pre.weight" in file.tensors:
            raise UserError(
                f"{file.path} does not say which network it is (it has a norm before its blocks); give name="
            )
        if "blocks.0.attn.q_proj.weight" in file.tensors or "rope.freqs" in file.tensors:
            raise UserError(f"{file.path} does not say which network it is (one of timm's EVA); give name=")
    return weights_of(file, _timm(file), options)


def _is_timm(file: CheckpointFile) -> bool:
    timm_only = (
        "head.weight",
        "fc_norm.weight",
        "reg_token",
        "norm_pre.weight",
        "layers.0.blocks.0.norm1.weight",
        "blocks.0.gamma_1",
        "attn_pool.latent",
    )
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
    Family("transformers", transformers_folder.recognises, _layout_family(transformers_folder.layout)),
    Family("dinov3", _is_official_dinov3, _layout_family(lambda file: dinov3.from_official(file, file.tensors))),
    Family("dinov2", _is_dinov2, _layout_family(_dinov2)),
    Family("mae", _is_mae, _layout_family(_mae)),
    Family("timm", _is_timm, _from_timm),
    Family("flsl", _is_flsl, _layout_family(_flsl)),
    # A bare ViT is assumed to be DINO's, iBOT's or of their successors (MaSSL, SOP, CrIBo), which publish such files;
    # give family="timm" if yours is timm's.
    Family("dino", _is_timm_like, _dino_or_ibot),
]


def _without_mask_token(tensors: Mapping[str, Tensor], name: str) -> tuple[dict[str, Tensor], Tensor | None]:
    token = tensors.get(name)
    rest = {n: t for n, t in tensors.items() if n != name}
    return rest, None if token is None else token.reshape(1, -1)


def _heads(file: CheckpointFile) -> int | None:
    heads = (file.config.get("model_args") or {}).get("num_heads")
    if heads is not None and (not isinstance(heads, int) or heads <= 0):
        raise UserError(f"{file.path.with_name('config.json')}: num_heads = {heads!r}; expected a positive number")
    return heads


def _triple(file: CheckpointFile, details: Mapping[str, Any], key: str) -> Triple | None:
    values = details.get(key)
    if values is None:
        return None
    numbers = isinstance(values, list | tuple) and all(isinstance(value, int | float) for value in values)
    if not numbers or len(values) != 3 or (key == "std" and min(values) <= 0):
        raise UserError(f"{file.path.with_name('config.json')}: {key} = {values!r}; expected three numbers")
    return float(values[0]), float(values[1]), float(values[2])
