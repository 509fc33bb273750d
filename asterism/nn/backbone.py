"""The contract of a backbone: images in, class token, patch tokens and registers out. Networks come from timm.

The families are `asterism.nn.vit`, `asterism.nn.rope_vit` and `asterism.nn.swin`. They are imported when a network is
built, because timm is slow to import and configurations are read everywhere.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field, field_validator
from torch import Tensor, nn

from asterism.config import Config
from asterism.errors import UserError
from asterism.nn.initialisation import Init, choose_init, initialise
from asterism.nn.needed_outputs import NeededPatches
from asterism.nn.positions import Grid, Positions, Resampling
from asterism.nn.timm_arguments import TimmArguments
from asterism.ranges import Count, CountFromZero, Few, Pixels, Positive, ShareBelowOne
from asterism.types import Tokens

# How tokens become the vector of an image: the class token, the mean patch, or the network's own attention pooling.
Pooling = Literal["class", "mean", "attention"]

NAME_OF_INIT = "init"  # as `backbone.name`: the network of the weights that a run starts from
FROM_WEIGHTS = ("arguments", "patch_size", "dim", "depth", "heads", "mlp_ratio", "window", "positions", "pretrained")


class BackboneConfig(Config):
    """A timm network and our changes to it. `None` keeps the named model's value."""

    name: str = "vit_small_patch16_224"  # a timm ViT (`vit_*`, `deit_*`, `eva*`) or Swin; init: the network of --init
    arguments: dict[str, Any] = Field(default={})  # of `TimmArguments`; `name: init` writes them
    image_size: Pixels | None = None  # pixels per side of a training view; position tables are made for this size
    patch_size: Pixels | None = None  # pixels per side of one output token
    dim: Count | None = None  # channels of the output tokens
    depth: Few | None = None  # blocks
    heads: Few | None = None  # if only dim is given: heads of 64 channels, or of 32 if dim is not a multiple of 64
    mlp_ratio: Positive | None = None  # hidden width of a block's MLP over dim
    window: Count | None = None  # side of a Swin's attention windows, in patches of their stage
    class_token: bool | None = None
    class_position: bool | None = None  # whether the class token has a position; None: only without registers
    registers: CountFromZero | None = None  # extra latent tokens without position
    positions: Positions = "learned"  # sincos tables are fixed
    resampling: Resampling = "antialiased"  # of learned positions, for views of another size; offset: as in DINO
    layer_norm_eps: Positive | None = None
    init: Init | Literal["auto"] = "auto"  # of fresh weights, see nn/initialisation.py; auto: by method and width
    drop_path: ShareBelowOne = 0.0  # rate at the last block, linear in depth; drawn from `drop_keys` only
    mask_token: bool = False  # a learned token that replaces masked patches, initially zero
    checkpointing: bool = False  # recompute blocks in the backward pass: less memory, a third more time
    pretrained: bool = False  # start from the weights timm publishes under this name

    @field_validator("arguments")
    @classmethod
    def _known_arguments(cls, value: dict[str, Any]) -> dict[str, Any]:
        TimmArguments.parse(value, section="backbone.arguments")
        return value


@dataclass(frozen=True)
class Architecture:
    """All that is needed to rebuild a network: `timm.create_model(name, **arguments)`, and settings timm lacks."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)  # plain JSON values
    resampling: Resampling = "antialiased"  # of positions for another input size; timm supports only antialiased
    layer_norm_eps: float | None = None  # None: timm's default
    positions: Positions = "learned"  # with `init`, determines the initial state of such a network
    init: Init = "timm"
    pooling: Pooling | None = None  # None: attention if the network has it, else its class token, else the mean patch


class Backbone(nn.Module, ABC):
    """A timm network that returns our tokens. `network` is the plain timm model; our additions are kept outside it."""

    takes_masks: ClassVar[bool]  # whether `keep` is supported; `mask` always is, given `BackboneConfig.mask_token`
    first_block: int = 0  # the first block whose tokens have the final grid and norm

    architecture: Architecture
    network: nn.Module
    dim: int
    patch_size: int  # pixels per side of one output token
    image_size: int  # pixels per side of the images the position table was made for
    depth: int
    has_cls: bool
    registers: int
    drop_path: float  # rate of stochastic depth at the last block
    checkpointing: bool

    @abstractmethod
    def forward(
        self,
        pixels: Float[Tensor, "b 3 h w"],
        *,
        mask: Bool[Tensor, "b n"] | None = None,
        keep: Int[Tensor, "b m"] | None = None,
        drop_keys: Int[Tensor, " b"] | None = None,
        needed: NeededPatches = "all",
    ) -> Tokens:
        """Tokens after the final norm.

        Masks, kept patches and keys are on the host, which has drawn them.
        mask: the mask token replaces these patches before positions are added.
        keep: only these patches (raster indices) are embedded and processed, in this order.
        drop_keys: random key per image for stochastic depth; without them no path is dropped (teachers, evaluation).
        needed: the patches whose tokens are used. Backbones that can do so save the last block's work for the others,
            whose tokens are then zero, or missing altogether if no patch is needed.
        """

    @abstractmethod
    def embedded(self, pixels: Float[Tensor, "b 3 h w"]) -> Tokens:
        """Tokens as they enter the first block, without any norm."""

    @abstractmethod
    def layers(self, pixels: Float[Tensor, "b 3 h w"], blocks: Sequence[int]) -> list[Tokens]:
        """Tokens after each of these blocks (negative: from the end); with the final norm from `first_block` on."""

    @abstractmethod
    def block_outputs(
        self, pixels: Float[Tensor, "b 3 h w"], blocks: Sequence[int], *, drop_keys: Int[Tensor, " b"] | None = None
    ) -> list[Tokens]:
        """Tokens after each of these blocks without the final norm, for heads that are trained with the network.

        drop_keys: as in `forward`.
        """

    @property
    @abstractmethod
    def level_blocks(self) -> tuple[int, int, int, int]:
        """The four blocks that a pyramid is built from: 3, 5, 7 and 11 of a ViT's 12, the last of each Swin stage."""

    @property
    @abstractmethod
    def level_widths(self) -> tuple[int, int, int, int]:
        """Channels of the tokens after each of `level_blocks`."""

    @abstractmethod
    def attention(self, pixels: Float[Tensor, "b 3 h w"], block: int = -1) -> Float[Tensor, "b heads t t"]:
        """Attention weights of a block, queries × keys, tokens in the order class token, registers, patches."""

    def pool(self, tokens: Tokens) -> Float[Tensor, "b d"]:
        """The vector that represents each image: its class token, or the mean patch if there is none."""
        return tokens.patches.mean(dim=1) if tokens.cls is None else tokens.cls

    @property
    def pooled_patches(self) -> Literal["all", "none"]:
        """The patches that `pool` needs."""
        return "none" if self.has_cls else "all"

    def grid_of(self, pixels: Float[Tensor, "b 3 h w"]) -> Grid:
        """Rows and columns of the patch tokens of these images."""
        height, width = pixels.shape[-2:]
        if height % self.patch_size or width % self.patch_size:
            raise UserError(
                f"images of {height}×{width} pixels do not divide into patches of {self.patch_size}; "
                f"use sides that are multiples of {self.patch_size}"
            )
        return height // self.patch_size, width // self.patch_size

    def draw_weights(self, init: Init) -> None:
        """Draw fresh weights with the named initialisation."""
        initialise(self.network, init)
        self.architecture = replace(self.architecture, init=init)

    def block_index(self, block: int) -> int:
        """A block's index counted from the front."""
        if not -self.depth <= block < self.depth:
            raise UserError(
                f"block {block} does not exist in a network of {self.depth}; choose {-self.depth} … {self.depth - 1}"
            )
        return block % self.depth


def build_backbone(config: BackboneConfig, published: Init = "timm") -> Backbone:
    """A network with fresh weights, or timm's if `pretrained`. Seed torch's default generator first.

    published: the initialisation that the method's authors used, for `init: auto` at published widths.
    """
    from asterism.nn import rope_vit, swin, vit
    from asterism.nn.timm_models import family_of

    if config.name == NAME_OF_INIT:
        raise UserError("backbone.name = init takes the network from other weights: give --init WEIGHTS")
    builders: dict[str, Callable[[BackboneConfig], Backbone]] = {
        "vit": vit.build,
        "rope": rope_vit.build,
        "swin": swin.build,
    }
    backbone = builders[family_of(config.name)](config)
    backbone.draw_weights(choose_init(config.init, backbone.dim, published))
    if config.pretrained:
        from asterism.nn.weights.load import load_weights_into

        load_weights_into(backbone, config.name)
    return backbone


def rebuild_backbone(architecture: Architecture, *, drop_path: float = 0.0, checkpointing: bool = False) -> Backbone:
    """The network of an exported encoder in its initial state; its weights have yet to be loaded."""
    from asterism.nn.rope_vit import RopeViT
    from asterism.nn.swin import Swin
    from asterism.nn.timm_models import family_of
    from asterism.nn.vit import ViT

    classes: dict[str, Callable[..., Backbone]] = {"vit": ViT, "rope": RopeViT, "swin": Swin}
    make = classes[family_of(architecture.name)]
    backbone = make(architecture, drop_path=drop_path, checkpointing=checkpointing)
    backbone.draw_weights(architecture.init)
    return backbone


def bare_network(architecture: Architecture) -> nn.Module:
    """Timm's network without drawn weights, for its shapes alone."""
    from asterism.nn.timm_models import create_network, family_of

    undrawn = {} if family_of(architecture.name) == "rope" else {"weight_init": "skip"}
    return create_network(architecture.name, {**architecture.arguments, **undrawn})


def encode_views(
    backbone: nn.Module,
    views: Sequence[Float[Tensor, "_ 3 _ _"]],
    *,
    masks: Sequence[Bool[Tensor, "_ _"] | None] | None = None,
    keep: Sequence[Int[Tensor, "_ _"] | None] | None = None,
    drop_keys: Sequence[Int[Tensor, " _"] | None] | None = None,
    needed: Sequence[NeededPatches] | None = None,
) -> list[Tokens]:
    """Tokens of every view; views of the same resolution (and number of kept patches) share a forward pass.

    Give each view its own keys, or the views of an image drop the same paths. needed: as of `Backbone.forward`.
    """
    count = len(views)
    everything: Sequence[NeededPatches] = ["all"] * count
    per_view = [
        _View(*parts)
        for parts in zip(
            views,
            masks or [None] * count,
            keep or [None] * count,
            drop_keys or [None] * count,
            needed or everything,
            strict=True,
        )
    ]
    groups: dict[tuple[object, ...], list[int]] = {}
    for index, view in enumerate(per_view):
        groups.setdefault(view.kind, []).append(index)

    results: dict[int, Tokens] = {}
    for members in groups.values():
        group = [per_view[index] for index in members]
        tokens = backbone(
            torch.cat([view.pixels for view in group]),
            mask=_joined_masks(group),
            keep=_joined([view.keep for view in group]),
            drop_keys=_joined([view.keys for view in group]),
            needed=_joined_needed(group),
        )
        results.update(zip(members, _split(tokens, [len(view.pixels) for view in group]), strict=True))
    return [results[index] for index in range(count)]


@dataclass(frozen=True)
class _View:
    pixels: Tensor
    mask: Tensor | None
    keep: Tensor | None
    keys: Tensor | None
    needed: Tensor | Literal["all", "none"]

    @property
    def kind(self) -> tuple[object, ...]:
        """Views of the same kind fit into one forward pass."""
        kept = None if self.keep is None else self.keep.shape[1]
        needed = self.needed if isinstance(self.needed, str) else "some"
        return (*self.pixels.shape[-2:], kept, self.keys is not None, needed)


def _joined(parts: Sequence[Tensor | None]) -> Tensor | None:
    present = [part for part in parts if part is not None]
    return torch.cat(present) if present else None


def _joined_needed(group: Sequence[_View]) -> NeededPatches:
    if isinstance(group[0].needed, str):
        return group[0].needed
    return torch.cat([view.needed for view in group if not isinstance(view.needed, str)])


def _joined_masks(group: Sequence[_View]) -> Tensor | None:
    """Masks of a group; if some views have masks, a view without one gets an empty mask."""
    first = next((view.mask for view in group if view.mask is not None), None)
    if first is None:
        return None
    nowhere = [first.new_zeros(len(view.pixels), first.shape[1]) for view in group]
    return torch.cat([view.mask if view.mask is not None else none for view, none in zip(group, nowhere, strict=True)])


def _split(tokens: Tokens, sizes: Sequence[int]) -> list[Tokens]:
    if len(sizes) == 1:
        return [tokens]
    cls = [None] * len(sizes) if tokens.cls is None else torch.split(tokens.cls, list(sizes))
    patches, registers = torch.split(tokens.patches, list(sizes)), torch.split(tokens.registers, list(sizes))
    return [Tokens(c, p, r, tokens.grid) for c, p, r in zip(cls, patches, registers, strict=True)]
