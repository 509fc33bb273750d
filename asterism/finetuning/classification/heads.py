"""Heads of classification."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from asterism.config import Config
from asterism.errors import UserError
from asterism.nn.backbone import Backbone
from asterism.ranges import Count, NonNegative
from asterism.types import Tokens

# auto: the network's own pooling (class token, mean patch or attention); sparse: the mean concept token (STELLAR)
HeadPooling = Literal["auto", "mean", "cls-mean", "sparse"]


class ClassifyHeadConfig(Config):
    """What all heads have."""

    name: str
    pooling: HeadPooling = "auto"
    norm: bool = False  # a LayerNorm before the first layer
    std: NonNegative = 2e-5  # of the classifier's initial weights: the first predictions are uniform


class LinearHeadConfig(ClassifyHeadConfig):
    """One linear layer."""

    name: Literal["linear"] = "linear"


class FirstLayerHeadConfig(ClassifyHeadConfig):
    """The first layer of the pretrained projection head with its GELU, then a linear layer."""

    name: Literal["first-layer"] = "first-layer"
    hidden: Count | None = None  # channels of that layer; None: as in the source


HEADS: Mapping[str, type[ClassifyHeadConfig]] = {"linear": LinearHeadConfig, "first-layer": FirstLayerHeadConfig}


class ClassifyHead(nn.Module):
    """From tokens to one logit per class."""

    def __init__(
        self, config: ClassifyHeadConfig, backbone: Backbone, classes: int, projection: Mapping[str, Tensor]
    ) -> None:
        super().__init__()
        self.config = config
        width = pooled_width(config.pooling, backbone)
        self.norm = nn.LayerNorm(width) if config.norm else nn.Identity()
        self.layers: nn.Module = nn.Identity()
        if isinstance(config, FirstLayerHeadConfig):
            if config.hidden is None:
                raise UserError("task.head.hidden is missing: the channels of the projection head's first layer")
            first = nn.Linear(width, config.hidden)
            _load(first, projection)
            self.layers, width = nn.Sequential(first, nn.GELU()), config.hidden
        self.classifier = nn.Linear(width, classes)
        nn.init.trunc_normal_(self.classifier.weight, std=config.std)
        nn.init.zeros_(self.classifier.bias)

    def forward(self, vector: Float[Tensor, "b d"]) -> Float[Tensor, "b c"]:
        return self.classifier(self.inputs(vector))

    def inputs(self, vector: Float[Tensor, "b d"]) -> Float[Tensor, "b e"]:
        """What the classifier takes."""
        found: Tensor = self.layers(self.norm(vector))
        return found


def pooled(tokens: Tokens, backbone: Any, pooling: HeadPooling) -> Float[Tensor, "b d"]:
    """The vector that a head takes. backbone: gives its own pooling."""
    if pooling == "sparse":
        return tokens.registers.mean(dim=1)
    if pooling == "mean":
        return tokens.patches.mean(dim=1)
    own = backbone.pool(tokens)
    return torch.cat([own, tokens.patches.mean(dim=1)], dim=1) if pooling == "cls-mean" else own


def pooled_width(pooling: HeadPooling, backbone: Backbone) -> int:
    if pooling == "sparse" and not backbone.registers:
        raise UserError(
            "task.head.pooling = sparse takes the mean concept token, but the source has none; choose auto or mean, "
            "or start from a STELLAR run"
        )
    return backbone.dim * (2 if pooling == "cls-mean" else 1)


def first_layer_width(projection: Mapping[str, Tensor]) -> int:
    if "0.weight" not in projection:
        raise UserError(
            "task.head.name = first-layer starts from the pretrained projection head, but the source has none: an "
            "encoder file does not contain it. Give the run folder or the original checkpoint, or choose head=linear"
        )
    return projection["0.weight"].shape[0]


@torch.no_grad()
def _load(layer: nn.Linear, projection: Mapping[str, Tensor]) -> None:
    """The pretrained layer; without it (a fresh start, or a checkpoint to be loaded) the initial weights stay."""
    weight = projection.get("0.weight")
    if weight is None:
        return
    if weight.shape != layer.weight.shape:
        raise UserError(
            f"the projection head of the source has the shape {list(weight.shape)}, but this head needs "
            f"{list(layer.weight.shape)}; choose head=linear, or task.head.pooling=auto"
        )
    layer.weight.copy_(weight)
    layer.bias.copy_(projection.get("0.bias", torch.zeros_like(layer.bias)))
