"""Multinomial logistic regression on standardised features, with soft labels: convex, so without a seed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

_ITERATIONS, _MORE = 60, 20  # of L-BFGS, from zero and from a similar solution; the loss hardly changes after 40
_FIFTHS = 5
RIDGES = (3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001)


@dataclass(frozen=True)
class Linear:
    """A linear layer on features as they are: the standardisation is part of it."""

    weight: Float[Tensor, "c d"]
    bias: Float[Tensor, " c"]

    def __call__(self, features: Float[Tensor, "n d"]) -> Float[Tensor, "n c"]:
        return F.linear(features.float(), self.weight, self.bias)


def logistic_regression(
    features: Float[Tensor, "n d"], targets: Float[Tensor, "n c"], ridges: Sequence[float]
) -> Iterator[Linear]:
    """The layers that minimise mean cross-entropy + ridge · ‖weight‖² / 2, each from the solution of the one before.

    The penalty is on the weights of the standardised features.
    """
    mean = features.mean(dim=0)
    scale = 1 / features.std(dim=0, correction=0).clamp_min(1e-6)
    inputs = (features - mean) * scale
    weight = torch.zeros(targets.shape[1], features.shape[1], device=features.device, requires_grad=True)
    bias = torch.zeros(targets.shape[1], device=features.device, requires_grad=True)
    for place, ridge in enumerate(ridges):
        _minimise(inputs, targets, weight, bias, ridge, _MORE if place else _ITERATIONS)
        own = weight.detach() * scale
        yield Linear(own, bias.detach() - own @ mean)


def left_out_logits(
    features: Float[Tensor, "n d"], targets: Float[Tensor, "n c"], groups: Int[Tensor, " n"], folds: int
) -> tuple[Float[Tensor, "r m c"], Int[Tensor, " m"]]:
    """By ridge, the logits of rows that their layer was not fitted to; and which rows these are.

    groups: rows with the same number, such as the patches of an image, are left out together, every fifth group at a
    time. folds: how many fifths are left out, one after the other.
    """
    logits, rows = [features.new_zeros(len(RIDGES), 0, targets.shape[1])], [groups.new_zeros(0)]
    for fold in range(folds):
        out = groups % _FIFTHS == fold
        if out.any() and not out.all():
            layers = logistic_regression(features[~out], targets[~out], RIDGES)
            logits.append(torch.stack([layer(features[out]) for layer in layers]))
            rows.append(out.nonzero()[:, 0])
    return torch.cat(logits, dim=1), torch.cat(rows)


def _minimise(inputs: Tensor, targets: Tensor, weight: Tensor, bias: Tensor, ridge: float, most: int) -> None:
    optimizer: Any = torch.optim.LBFGS(
        [weight, bias], max_iter=most, tolerance_change=1e-7, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = F.cross_entropy(F.linear(inputs, weight, bias), targets) + ridge / 2 * weight.square().sum()
        torch.autograd.backward(value)
        return value

    with torch.enable_grad():
        optimizer.step(loss)
