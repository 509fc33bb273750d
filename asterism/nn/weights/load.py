"""Loading weights: encoders from runs, published checkpoints and timm, and initialising a run from any of them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from asterism.errors import UserError
from asterism.nn.backbone import Architecture, Backbone, rebuild_backbone
from asterism.nn.encoder import Encoder, Triple
from asterism.nn.positions import resample, table_layout
from asterism.nn.weights.checkpoint_file import SUFFIXES, read_checkpoint
from asterism.nn.weights.encoder_weights import EncoderWeights, Hints
from asterism.nn.weights.families import convert
from asterism.nn.weights.stellar import no_tokenizer_needed

_MAY_DIFFER = {"cls_token", "reg_token", "mask_token"}  # a network works with or without them


def load_encoder(
    source: str | Path,
    *,
    which: Literal["teacher", "student"] = "teacher",
    heads: int | None = None,
    decoder_heads: int | None = None,
    tokenizer: str | Path | None = None,
    family: str | None = None,
    name: str | None = None,
    image_size: int | None = None,
    mean: Triple | None = None,
    std: Triple | None = None,
) -> Encoder:
    """The encoder of a run folder, a weight file, a transformers folder, or a timm model name (its published weights).

    which: student or teacher, if the checkpoint contains both. heads: attention heads, if the file does not state them,
    and decoder_heads those of a STELLAR decoder. tokenizer: whose codes such a decoder predicts; published files lack
    it. family: read the file as this family instead of detecting it. name: the timm model that a timm file belongs to.
    image_size, mean, std: override those of the weights.
    """
    weights = _weights(source, which, Hints(heads, name, decoder_heads, tokenizer), family)
    backbone = rebuild_backbone(weights.architecture)
    report = _load(backbone, weights, str(source))
    if report.fresh:
        raise UserError(f"{source} lacks the tensor {report.fresh[0]!r}")
    changes: dict[str, Any] = {"image_size": image_size, "mean": mean, "std": std}
    weights = dataclasses.replace(weights, **{key: value for key, value in changes.items() if value is not None})
    return weights.encoder(backbone).eval()


@dataclass(frozen=True)
class LoadReport:
    """Which tensors were loaded from a checkpoint that may differ from the network in some parts."""

    loaded: tuple[str, ...]
    fresh: tuple[str, ...]  # parameters the checkpoint lacks: they keep their initial values
    unused: tuple[str, ...]  # tensors of the checkpoint that the network does not have
    resampled: str | None = None  # "14×14 → 6×6" if positions were resampled to another grid

    def __str__(self) -> str:
        parts = [f"{len(self.loaded)} tensors loaded"]
        if self.resampled:
            parts.append(f"positions resampled {self.resampled}")
        if self.fresh:
            parts.append(f"not in the checkpoint, so fresh: {', '.join(self.fresh)}")
        if self.unused:
            parts.append(f"not used: {', '.join(self.unused)}")
        return "; ".join(parts)


def load_weights_into(
    backbone: Backbone,
    source: str | Path,
    *,
    which: Literal["teacher", "student"] = "teacher",
    family: str | None = None,
) -> LoadReport:
    """Initialise a backbone from other weights (anything `load_encoder` reads); positions are resampled to its grid."""
    heads = backbone.architecture.arguments.get("num_heads", 1)  # has no tensors, so any value will do
    weights = _weights(source, which, Hints(heads, backbone.architecture.name), family)
    return _load(backbone, weights, str(source))


def _weights(source: str | Path, which: str, hints: Hints, family: str | None) -> EncoderWeights:
    path = Path(source)
    if path.exists() or path.suffix in SUFFIXES or len(path.parts) > 1:
        return convert(read_checkpoint(path, which), hints, family)
    if hints.tokenizer is not None:
        raise no_tokenizer_needed(source)
    return _published_weights(str(source))


def _published_weights(name: str) -> EncoderWeights:
    """Weights that timm publishes under a model's name."""
    from asterism.nn import swin, vit
    from asterism.nn.timm_models import family_of, published_network

    arguments = swin.FEATURES_ONLY if family_of(name) == "swin" else vit.FEATURES_ONLY
    network = published_network(name, arguments)
    details = network.pretrained_cfg
    return EncoderWeights(
        Architecture(name, arguments), network.state_dict(), mean=tuple(details["mean"]), std=tuple(details["std"])
    )


def _load(backbone: Backbone, weights: EncoderWeights, source: str) -> LoadReport:
    tensors, resampled = dict(weights.tensors), None
    if "pos_embed" in tensors and isinstance(getattr(backbone.network, "pos_embed", None), Tensor):
        tensors, resampled = _with_positions_of(backbone.network, tensors, weights.architecture)
    own = dict(backbone.network.state_dict())
    mask_token = getattr(backbone, "mask_token", None)
    if mask_token is not None:
        own["mask_token"] = mask_token
    if weights.mask_token is not None:
        tensors["mask_token"] = weights.mask_token

    _check(source, own, tensors)
    common = [name for name in own if name in tensors]
    with torch.no_grad():
        for name in common:
            own[name].copy_(tensors[name])
    return LoadReport(
        loaded=tuple(common),
        fresh=tuple(name for name in own if name not in tensors),
        unused=tuple(name for name in tensors if name not in own),
        resampled=resampled,
    )


def _with_positions_of(
    network: Any, tensors: dict[str, Tensor], architecture: Architecture
) -> tuple[dict[str, Tensor], str | None]:
    """Positions on the network's grid, with rows for class token and registers if and only if the network has them.

    A row without a place is added to its token, as the forward pass would do; a missing one is zero.
    """
    cls, registers, table = tensors.get("cls_token"), tensors.get("reg_token"), tensors["pos_embed"]
    counts = (0 if cls is None else 1, 0 if registers is None else registers.shape[1])
    own_counts = (int(network.has_class_token), network.num_reg_tokens)
    if counts == own_counts and table.shape == network.pos_embed.shape:
        return tensors, None

    patches_alone = architecture.arguments.get("no_embed_class", bool(counts[1]))
    side, patches_only = table_layout(table.shape[1], sum(counts), patches_alone)
    rows = 0 if patches_only else sum(counts)
    prefix, patches = table[:, :rows], table[:, rows:]
    grid = network.patch_embed.grid_size
    patches = resample(patches, (side, side), grid, architecture.resampling)
    cls_row, register_rows = prefix[:, : counts[0]], prefix[:, counts[0] :]
    changed = dict(tensors)
    if network.no_embed_class:
        if cls is not None and rows:
            changed["cls_token"] = cls + cls_row
        if registers is not None and rows:
            changed["reg_token"] = registers + register_rows
        changed["pos_embed"] = patches
    else:
        own_cls_row = _rows_or_zeros(cls_row, own_counts[0], patches)
        own_register_rows = _rows_or_zeros(register_rows, own_counts[1], patches)
        changed["pos_embed"] = torch.cat([own_cls_row, own_register_rows, patches], dim=1)
    return changed, None if grid == (side, side) else f"{side}×{side} → {grid[0]}×{grid[1]}"


def _rows_or_zeros(rows: Tensor, count: int, like: Tensor) -> Tensor:
    return rows if rows.shape[1] == count else like.new_zeros(1, count, like.shape[2])


def _check(source: str, own: dict[str, Tensor], tensors: dict[str, Tensor]) -> None:
    """Refuse weights of a different shape before anything is changed."""
    fix = f"build the backbone to fit ({_sizes(tensors)}), or choose other weights"
    for name in (name for name in own if name in tensors):
        theirs, ours = list(tensors[name].shape), list(own[name].shape)
        if theirs != ours:
            raise UserError(f"{name} has the shape {theirs} in {source} and {ours} in the backbone; {fix}")
    lacking = next((name for name in own if name not in tensors and name not in _MAY_DIFFER), None)
    if lacking is not None:
        raise UserError(f"{source} lacks the tensor {lacking!r} of the backbone; {fix}")
    left_over = next((name for name in tensors if name not in own and name not in _MAY_DIFFER), None)
    if left_over is not None:
        raise UserError(f"{source} has a tensor {left_over!r} that the backbone does not have; {fix}")


def _sizes(tensors: dict[str, Tensor]) -> str:
    """The sizes of a checkpoint, named as in `BackboneConfig`."""
    sizes = []
    if "patch_embed.proj.weight" in tensors:
        dim, _, patch, _ = tensors["patch_embed.proj.weight"].shape
        sizes += [f"dim {dim}", f"patch_size {patch}"]
    blocks = {name.split(".")[1] for name in tensors if name.startswith("blocks.")}
    if blocks:
        sizes.append(f"depth {len(blocks)}")
    if "reg_token" in tensors:
        sizes.append(f"registers {tensors['reg_token'].shape[1]}")
    if any(name.endswith("ls1.gamma") for name in tensors):
        sizes.append("layer scale")
    return "the checkpoint has " + ", ".join(sizes)
