"""Projection heads: a small network from tokens to unit vectors, and on to logits over prototypes.

Parameters are named as in public DINO and iBOT checkpoints: `mlp.0`, `mlp.2`, `mlp.4`, `last_layer.weight_g/_v`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from asterism.ops.precision import at_least_float32
from asterism.types import Tokens


class ProjectionHead(nn.Module):
    """Linear layers with exact GELU between them; the output is scaled to unit length."""

    def __init__(
        self, in_dim: int, hidden_dim: int = 2048, bottleneck_dim: int = 256, layers: int = 3, epsilon: float = 1e-12
    ) -> None:
        super().__init__()
        widths = [in_dim, *[hidden_dim] * (layers - 1), bottleneck_dim]
        self.mlp = nn.Sequential()
        for before, after in pairwise(widths):
            if len(self.mlp) > 0:
                self.mlp.append(nn.GELU())
            linear = nn.Linear(before, after)
            nn.init.trunc_normal_(linear.weight, std=0.02)
            nn.init.zeros_(linear.bias)
            self.mlp.append(linear)
        self.epsilon = epsilon  # lower bound of the length in the normalisation

    def project(self, x: Float[Tensor, "*rows d"]) -> Float[Tensor, "*rows p"]:
        """Unit vectors, in float32."""
        return F.normalize(at_least_float32(self.mlp(x)), dim=-1, eps=self.epsilon)

    def forward(self, x: Float[Tensor, "*rows d"]) -> Float[Tensor, "*rows p"]:
        return self.project(x)


class PrototypeHead(ProjectionHead):
    """A projection, then one logit per prototype.

    Logits are cosines with the prototypes, each times its gain g; the gains are fixed to 1 if `norm_last_layer`.
    """

    def __init__(
        self,
        in_dim: int,
        out_dim: int,
        hidden_dim: int = 2048,
        bottleneck_dim: int = 256,
        layers: int = 3,
        norm_last_layer: bool = True,
    ) -> None:
        super().__init__(in_dim, hidden_dim, bottleneck_dim, layers)
        self.last_layer = WeightNormLinear(bottleneck_dim, out_dim, train_gain=not norm_last_layer)

    def forward(self, x: Float[Tensor, "*rows d"]) -> Float[Tensor, "*rows k"]:
        return self.last_layer(self.project(x))


class LeveledPrototypeHead(ProjectionHead):
    """One projection for several levels (images, objects), each with its own prototypes."""

    def __init__(
        self,
        in_dim: int,
        out_dims: Mapping[str, int],
        hidden_dim: int = 2048,
        bottleneck_dim: int = 256,
        layers: int = 3,
        norm_last_layer: bool = True,
    ) -> None:
        super().__init__(in_dim, hidden_dim, bottleneck_dim, layers)
        self.last_layers = nn.ModuleDict(
            {
                level: WeightNormLinear(bottleneck_dim, out_dim, train_gain=not norm_last_layer)
                for level, out_dim in out_dims.items()
            }
        )

    def logits(self, projected: Float[Tensor, "*rows p"], level: str) -> Float[Tensor, "*rows k"]:
        """One logit per prototype of a level."""
        return self.last_layers[level](projected)

    def prototypes(self, level: str) -> Float[Tensor, "k p"]:
        layer = self.last_layers[level]
        assert isinstance(layer, WeightNormLinear)
        return layer.weight


class WeightNormLinear(nn.Module):
    """x ↦ W x without bias, whose rows are w = g · v/‖v‖ (Salimans and Kingma, 2016)."""

    def __init__(self, in_dim: int, out_dim: int, train_gain: bool) -> None:
        super().__init__()
        self.weight_g = nn.Parameter(torch.ones(out_dim, 1), requires_grad=train_gain)
        self.weight_v = nn.Parameter(torch.empty(out_dim, in_dim))
        # W does not depend on the length of v, but the longer v is, the slower its direction changes. As in the
        # published runs, lengths are those of torch's default linear layer, about 1/√3.
        nn.init.uniform_(self.weight_v, -(in_dim**-0.5), in_dim**-0.5)

    @property
    def weight(self) -> Float[Tensor, "k d"]:
        """W: one prototype per row."""
        return self.weight_g / self.weight_v.norm(dim=1, keepdim=True) * self.weight_v

    def forward(self, x: Float[Tensor, "*rows d"]) -> Float[Tensor, "*rows k"]:
        return F.linear(x, self.weight)


def image_tokens(views: Sequence[Tokens]) -> Float[Tensor, "v b d"]:
    """The token that represents the whole image in each view: the class token, or the mean patch if there is none."""
    return torch.stack([view.patches.mean(dim=1) if view.cls is None else view.cls for view in views])
