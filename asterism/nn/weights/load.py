"""Loading weights: encoders from runs, published checkpoints and timm, and initialising a run from any of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from asterism.errors import UserError
from asterism.nn.backbone import NAME_OF_INIT, Architecture, Backbone, bare_network, rebuild_backbone
from asterism.nn.encoder import Encoder
from asterism.nn.positions import resample, table_layout
from asterism.nn.weights.checkpoint_file import SUFFIXES, read_checkpoint
from asterism.nn.weights.description import Description, WeightsOptions, warn_of_guesses, weights_options
from asterism.nn.weights.encoder_weights import EncoderWeights, described
from asterism.nn.weights.families import convert
from asterism.nn.weights.hub import PREFIX, hub_folder
from asterism.nn.weights.metadata import check_finite, check_fits
from asterism.nn.weights.packaged import is_packaged, packaged_file
from asterism.nn.weights.stellar import no_tokenizer_needed
from asterism.ops.normalise import Triple

_MAY_DIFFER = {"cls_token", "reg_token", "mask_token"}  # a network works with or without them
_POOLING = ("attn_pool.", "fc_norm.")


def load_encoder(source: str | Path, **words: Any) -> Encoder:
    """The encoder of a run folder, a weights file, a folder of transformers or timm, a timm name, or hf:ORG/NAME.

    The words are those of `WeightsOptions`. A value that neither they nor the file state is guessed, with a warning.
    """
    weights = read_weights(source, weights_options(**words))
    encoder = encoder_of(weights, source)
    warn_of_guesses(str(source), weights.guesses)
    return encoder


def encoder_of(weights: EncoderWeights, source: str | Path) -> Encoder:
    """The encoder with these weights, without a warning of what was guessed."""
    if weights.asked is not None:
        raise UserError(weights.asked)
    check_fits(lambda: bare_network(weights.architecture), weights.tensors, source)
    backbone = rebuild_backbone(weights.architecture)
    _load(backbone, weights, str(source), _DAMAGED, complete=True)
    return weights.encoder(backbone).eval()


@dataclass(frozen=True)
class LoadReport:
    """Which tensors were loaded from a checkpoint that may differ from the network in some parts."""

    loaded: tuple[str, ...]
    fresh: tuple[str, ...]  # parameters the checkpoint lacks: they keep their initial values
    unused: tuple[str, ...]  # tensors of the checkpoint that the network does not have
    resampled: str | None = None  # "14×14 → 6×6" if positions were resampled to another grid
    notes: tuple[str, ...] = ()  # small differences between the two networks
    pixels: tuple[Triple, Triple] | None = None  # mean and deviation of the checkpoint's images, if it states them

    def __str__(self) -> str:
        parts = [f"{len(self.loaded)} tensors loaded"]
        if self.resampled:
            parts.append(f"positions resampled {self.resampled}")
        if self.fresh:
            parts.append(f"not in the checkpoint, so fresh: {', '.join(self.fresh)}")
        if self.unused:
            parts.append(f"not used: {', '.join(self.unused)}")
        return "; ".join([*parts, *self.notes])


def load_weights_into(backbone: Backbone, source: str | Path, **words: Any) -> LoadReport:
    """Initialise a backbone from other weights (anything `load_encoder` reads); positions are resampled to its grid.

    Refuses weights of a network that computes something else: other shapes, heads, activations or rotary positions.
    """
    options = weights_options(**words)
    name = options.name or backbone.architecture.name
    weights = read_weights(source, options.model_copy(update={"name": name}))
    check_finite(weights.tensors, source)
    report = _load(backbone, weights, str(source), _other_backbone(weights.tensors))
    mean, std = weights.said.mean, weights.said.std
    pixels = None if mean is None or std is None else (mean, std)
    return dataclasses.replace(report, notes=_differences(backbone, weights, str(source)), pixels=pixels)


def read_weights(source: str | Path, options: WeightsOptions) -> EncoderWeights:
    """Tensors and architecture of a model in the package, a file, a folder, a timm name or hf:ORG/NAME."""
    place = _place_of(source)
    if place is not None:
        return convert(read_checkpoint(place, options.which, options.keys), options)
    if options.tokenizer is not None:
        raise no_tokenizer_needed(source)
    if options.keys is not None:
        raise UserError(f"keys rename the tensors of a file, and {source} is the name of a timm model; leave them out")
    return described(_published_weights(str(source)), options)


def _place_of(source: str | Path) -> Path | None:
    """The file or folder of weights; None for a name of timm."""
    if is_packaged(source):
        return packaged_file(str(source))
    if str(source).startswith(PREFIX):
        return hub_folder(str(source).removeprefix(PREFIX))
    path = Path(source)
    if not path.exists() and path.suffix not in SUFFIXES and str(source) == path.name:
        return None
    if not path.exists() and len(path.parts) == 2 and path.suffix not in SUFFIXES and not path.is_absolute():
        raise UserError(f"no such file or folder: {path}; a model of the Hugging Face hub is named {PREFIX}{path}")
    return path


def _published_weights(name: str) -> EncoderWeights:
    """Weights that timm publishes under a model's name."""
    from asterism.nn import swin, vit
    from asterism.nn.timm_models import family_of, network_outline, published_network

    if family_of(name) == "swin":
        arguments = swin.FEATURES_ONLY
    else:
        arguments = vit.FEATURES_ONLY | {"global_pool": network_outline(name).global_pool}
    network = published_network(name, arguments)
    mean, std = (tuple(network.pretrained_cfg[key]) for key in ("mean", "std"))
    said = Description(mean=mean, std=std)
    return EncoderWeights(Architecture(name, arguments), network.state_dict(), mean=mean, std=std, said=said)


def _differences(backbone: Backbone, weights: EncoderWeights, source: str) -> tuple[str, ...]:
    """Raise if the network of the weights computes something else; returns small differences."""
    own, said = backbone.architecture, weights.said
    fix = f"or take the network of the weights with backbone.name={NAME_OF_INIT}"
    blocks: Any = getattr(backbone.network, "blocks", None)
    if blocks is None:
        return ()
    heads = blocks[0].attn.num_heads
    if said.heads not in (None, heads):
        raise UserError(
            f"{source} has {said.heads} attention heads, the backbone has {heads}; set backbone.heads={said.heads}, "
            f"{fix}"
        )
    activation = type(blocks[0].mlp.act).__name__.casefold()
    if said.activation is not None and said.activation.replace("_", "") != activation:
        raise UserError(f"{source} has the activation {said.activation} and the backbone {activation}; {fix}")
    rope = getattr(backbone.network, "rope", None)
    temperature = weights.architecture.arguments.get("rope_temperature")
    if rope is not None and temperature not in (None, getattr(rope, "temperature", temperature)):
        raise UserError(f"{source} has rotary positions of base {temperature}, the backbone {rope.temperature}; {fix}")
    eps = {module.eps for module in backbone.modules() if isinstance(module, nn.LayerNorm)}
    if said.eps is not None and eps != {said.eps}:
        return (f"LayerNorms have eps {said.eps:g} in the checkpoint and {own.layer_norm_eps or min(eps):g} here",)
    return ()


_DAMAGED = "the file is incomplete or belongs to another network; give family= or name= if it was misread"


def _other_backbone(tensors: Mapping[str, Tensor]) -> str:
    return f"build the backbone to fit ({_sizes(tensors)}), or choose other weights"


def _load(backbone: Backbone, weights: EncoderWeights, source: str, fix: str, *, complete: bool = False) -> LoadReport:
    """complete: whether the checkpoint must have every tensor of the network and no other."""
    tensors, resampled = dict(weights.tensors), None
    if "pos_embed" in tensors and isinstance(getattr(backbone.network, "pos_embed", None), Tensor):
        tensors, resampled = _with_positions_of(backbone, tensors, weights.architecture)
    own = dict(backbone.network.state_dict())
    mask_token = getattr(backbone, "mask_token", None)
    if mask_token is not None:
        own["mask_token"] = mask_token
    if weights.mask_token is not None and not complete:
        tensors["mask_token"] = weights.mask_token

    _check(source, own, tensors, fix, complete)
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
    backbone: Any, tensors: dict[str, Tensor], architecture: Architecture
) -> tuple[dict[str, Tensor], str | None]:
    """Positions on the network's grid, with rows for class token and registers if and only if the network has them.

    A row without a place is added to its token, as the forward pass would do; a missing one is zero.
    """
    network = backbone.network
    cls, registers, table = tensors.get("cls_token"), tensors.get("reg_token"), tensors["pos_embed"]
    counts = (0 if cls is None else 1, 0 if registers is None else registers.shape[1])
    own_counts = (int(backbone.has_cls), backbone.registers)
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


def _check(source: str, own: dict[str, Tensor], tensors: dict[str, Tensor], fix: str, complete: bool) -> None:
    """Refuse weights of a different shape before anything is changed."""
    may_differ, place = (set[str](), "its network") if complete else (_MAY_DIFFER, "the backbone")
    for name in (name for name in own if name in tensors):
        theirs, ours = list(tensors[name].shape), list(own[name].shape)
        if theirs != ours:
            raise UserError(f"{name} has the shape {theirs} in {source} and {ours} in {place}; {fix}")
        if own[name].is_floating_point() and not tensors[name].is_floating_point():
            kind = str(tensors[name].dtype).removeprefix("torch.")
            raise UserError(f"{name} of {source} is {kind}; save the weights as floating-point numbers")
    lacking = [name for name in own if name not in tensors and name not in may_differ]
    if lacking:
        raise UserError(f"{source} lacks the tensor {_first_of(lacking)} of {place}; {fix}")
    # A pooling that the network was trained with is left out when only its tokens are wanted.
    left_over = [n for n in tensors if n not in own and n not in may_differ and not n.startswith(_POOLING)]
    if left_over:
        raise UserError(f"{source} has a tensor {_first_of(left_over)} that {place} does not have; {fix}")


def _first_of(names: list[str]) -> str:
    more = len(names) - 1
    return repr(names[0]) + (f" (and {more} more)" if more else "")


def _sizes(tensors: Mapping[str, Tensor]) -> str:
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
