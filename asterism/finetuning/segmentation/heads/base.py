"""The contract of a head: which tokens of the network it reads, and the logits it makes of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from asterism.config import Config
from asterism.errors import UserError
from asterism.nn.backbone import Backbone
from asterism.ops.random import fold_each, uniform
from asterism.ranges import FewFromZero
from asterism.types import Tokens

Logits = Float[Tensor, "b c _ _"]
Blocks = tuple[FewFromZero, FewFromZero, FewFromZero, FewFromZero]  # of the network, counted from 0

_CLASSIFIER_STD = 0.01  # of initial weights, as in mmsegmentation: the first predictions are nearly uniform


class SegmentHeadConfig(Config):
    """What the settings of all heads have."""

    freezes: ClassVar[bool] = False  # whether the network is frozen unless the task's settings say otherwise
    least_images: ClassVar[int] = 1  # per process and micro-batch: batch norm needs more than one value

    name: str

    def build(self, backbone: Backbone, classes: int) -> SegmentHead:
        """The head with fresh weights; a UserError if it does not fit the network. Seed torch's generator first."""
        raise NotImplementedError


class SegmentHead(nn.Module, ABC):
    """Makes logits on a coarse grid; the task upsamples them to pixels."""

    weights: tuple[float, ...] = (1.0,)  # of the losses of the logits that a training step returns
    read_blocks: tuple[int, ...] = ()  # blocks whose tokens the head reads; none: the network's last tokens
    normed: bool = True  # whether these tokens have gone through the network's final norm

    @abstractmethod
    def read(
        self, backbone: Backbone, pixels: Float[Tensor, "b 3 h w"], drop_keys: Int[Tensor, " b"] | None
    ) -> list[Tokens]:
        """The tokens that the head takes. drop_keys: of stochastic depth, see `Backbone.forward`."""

    def probed_layer(self) -> nn.Conv2d | None:
        """The linear layer that may start from a probe of the frozen network, if the head is one."""
        return None

    def inputs(self, tokens: Sequence[Tokens]) -> Float[Tensor, "b n d"]:
        """What that layer takes, for every cell of the grid."""
        raise NotImplementedError

    @abstractmethod
    def forward(self, tokens: Sequence[Tokens], keys: Int[Tensor, " b"] | None) -> list[Logits]:
        """The logits, and in a training step, which has keys for its draws, those of auxiliary classifiers."""


def classifier(width: int, classes: int) -> nn.Conv2d:
    """A linear layer on every cell of a map."""
    layer = nn.Conv2d(width, classes, kernel_size=1)
    nn.init.normal_(layer.weight, std=_CLASSIFIER_STD)
    nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    return layer


def level_blocks(chosen: Blocks | None, backbone: Backbone, head: str) -> tuple[int, ...]:
    """The four blocks that a pyramid is built from: those chosen, or the network's usual ones."""
    if chosen is None:
        return backbone.level_blocks
    if backbone.first_block > 0 and tuple(chosen) != tuple(backbone.level_blocks):
        raise UserError(
            f"task.head.blocks = {list(chosen)}: the levels of a Swin are the ends of its stages, blocks "
            f"{list(backbone.level_blocks)}; leave the setting out, or choose a ViT for head={head}"
        )
    for block in chosen:
        if block >= backbone.depth:
            raise UserError(
                f"task.head.blocks = {list(chosen)}: the network has the blocks 0 … {backbone.depth - 1}; "
                f"its usual ones are {list(backbone.level_blocks)}"
            )
    return tuple(chosen)


def block_tokens(
    backbone: Backbone,
    pixels: Float[Tensor, "b 3 h w"],
    blocks: Sequence[int],
    drop_keys: Int[Tensor, " b"] | None,
    *,
    normed: bool,
) -> list[Tokens]:
    """The tokens after each of these blocks, through the network's final norm if `normed`."""
    found = backbone.block_outputs(pixels, blocks, drop_keys=drop_keys)
    if not normed:
        return found
    norm: Any = backbone.network.norm
    return [Tokens(each.cls, norm(each.patches), each.registers, each.grid) for each in found]


def check_norm(normed: bool, backbone: Backbone, head: str) -> bool:
    """The setting `task.head.final_norm`, if it fits the network."""
    if normed and backbone.first_block > 0:
        raise UserError(
            "task.head.final_norm = true: the final norm of a Swin fits its last stage only; leave the setting out, or "
            f"choose a ViT for head={head}"
        )
    return normed


def dropped_channels(
    features: Float[Tensor, "b d h w"], keys: Int[Tensor, " b"] | None, rate: float, use: int
) -> Float[Tensor, "b d h w"]:
    """Dropout of whole channels, each drawn from the image's key. use: separates it from other uses of the key."""
    if keys is None or rate == 0:
        return features
    kept = uniform(fold_each(keys, use), features.shape[1]) >= rate
    return features * (kept.to(features.dtype) / (1 - rate))[:, :, None, None]


def concatenated(maps: Sequence[Float[Tensor, "b _ h w"]]) -> Float[Tensor, "b d h w"]:
    return torch.cat(list(maps), dim=1)
