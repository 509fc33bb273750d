"""The vector of an image that linear classifiers take: class tokens or mean patches of the last blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from asterism.nn.backbone import Backbone
from asterism.types import Tokens

_LAYERS = 4
_LARGE = 768  # channels; from this size on, the last class token and the mean patch token are used

# cls4, mean4: class token or mean patch of the last four blocks; cls, mean: of the last; cls-mean: both of the last
LinearFeature = Literal["auto", "cls4", "cls-mean", "cls", "mean4", "mean"]


def chosen_feature(requested: LinearFeature, backbone: Backbone) -> LinearFeature:
    """The feature to use with this network: without a class token, as in Swin, the mean patch token replaces it."""
    if backbone.has_cls:
        return requested if requested != "auto" else "cls-mean" if backbone.dim >= _LARGE else "cls4"
    return "mean" if requested in ("cls", "cls-mean", "mean") else "mean4"


def linear_feature(
    backbone: Backbone, pixels: Float[Tensor, "b 3 h w"], feature: LinearFeature
) -> Float[Tensor, "b d"]:
    """The feature of normalised pixels; `feature` is a chosen one."""
    return vector_of_layers(backbone, feature_layers(backbone, pixels, feature), feature)


def feature_layers(backbone: Backbone, pixels: Float[Tensor, "b 3 h w"], feature: LinearFeature) -> list[Tokens]:
    """The tokens that a feature is made of; the last ones are those that the backbone returns."""
    if feature in ("cls4", "mean4"):
        return backbone.layers(pixels, range(max(0, backbone.depth - _LAYERS), backbone.depth))
    return [backbone(pixels)]


def vector_of_layers(backbone: Backbone, layers: Sequence[Tokens], feature: LinearFeature) -> Float[Tensor, "b d"]:
    """The feature, from its layers."""
    if feature in ("cls", "cls4"):
        return torch.cat([backbone.pool(each) for each in layers], dim=1)
    means = [each.patches.mean(1) for each in layers]
    return torch.cat([backbone.pool(layers[-1]), *means] if feature == "cls-mean" else means, dim=1)
