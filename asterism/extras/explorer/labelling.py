"""How well the labels given so far can be predicted, and what they say about the other images.

Both scores leave each labelled image out and predict it from the others, so every label is a test. For ridge regression
that needs no second fit: with the hat matrix H = K (K + λ I)⁻¹ of the kernel K = X Xᵀ, the prediction for image i
without image i is (ŷᵢ − hᵢᵢ yᵢ) / (1 − hᵢᵢ).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from asterism.ops.knn import votes

_RIDGE = 0.1  # λ, for vectors of unit length
_NEIGHBOURS, _TEMPERATURE = 10, 0.07  # of the vote, as in the k-NN protocol
MOST_CLASSES = 100
MOST_LABELLED = 2000  # whose kernel is inverted within a second


@dataclass(frozen=True)
class LabelScores:
    """Leave-one-out accuracies in percent; None with fewer than two classes."""

    knn: float | None
    linear: float | None


def leave_one_out(vectors: Float[Tensor, "n d"], labels: Int[Tensor, " n"]) -> LabelScores:
    classes = int(labels.max()) + 1 if len(labels) else 0
    if len(set(labels.tolist())) < 2 or len(labels) < 3:
        return LabelScores(None, None)
    kernel = vectors @ vectors.T
    others = kernel.clone().fill_diagonal_(-torch.inf)
    similarity, rows = others.topk(min(_NEIGHBOURS, len(labels) - 1), dim=1)
    voted = votes(similarity, labels[rows], classes, _TEMPERATURE).argmax(dim=1)
    targets = _targets(labels, classes)
    hat = _hat(kernel)
    own = hat.diagonal()[:, None]
    predicted = (hat @ targets - own * targets) / (1 - own)
    return LabelScores(_percent(voted, labels), _percent(predicted.argmax(dim=1), labels))


def class_scores(
    vectors: Float[Tensor, "n d"], labelled: Int[Tensor, " m"], labels: Int[Tensor, " m"], classes: int
) -> Float[Tensor, "n c"]:
    """How much every image looks like each class: ridge regression on the labelled ones, about −1 … 1."""
    known = vectors[labelled].float()
    kernel = (known @ known.T).double()
    ridge = _RIDGE * torch.eye(len(kernel), dtype=torch.float64)
    dual = torch.linalg.solve(kernel + ridge, _targets(labels, classes).double())
    weights = known.T @ dual.float()
    return torch.cat([vectors[i : i + 65_536].float() @ weights for i in range(0, len(vectors), 65_536)])


def _hat(kernel: Float[Tensor, "n n"]) -> Float[Tensor, "n n"]:
    wide = kernel.double()
    inverse = torch.linalg.inv(wide + _RIDGE * torch.eye(len(wide), dtype=torch.float64))
    return (wide @ inverse).float()


def _targets(labels: Int[Tensor, " n"], classes: int) -> Float[Tensor, "n c"]:
    """1 for the image's class, −1 for all others."""
    return 2 * torch.nn.functional.one_hot(labels, classes).float() - 1


def _percent(predicted: Int[Tensor, " n"], labels: Int[Tensor, " n"]) -> float:
    return 100 * float((predicted == labels).float().mean())
