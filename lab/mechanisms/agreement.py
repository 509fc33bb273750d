"""How often labels agree: counts by group and class, and shares of equal pairs."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def group_counts(group: Int[Tensor, " n"], label: Int[Tensor, " n"], groups: int, classes: int) -> Float[Tensor, "g c"]:
    """How many things of each class are in each group; labels below 0 count nowhere."""
    known = label >= 0
    places = group[known] * classes + label[known]
    return torch.bincount(places, minlength=groups * classes).view(groups, classes).double()


def same_share(first: Int[Tensor, " n"], second: Int[Tensor, " n"], chosen: Bool[Tensor, " n"]) -> float:
    """Share of the chosen pairs with equal labels; unknown ones (below 0) count nowhere. NaN if none is left."""
    counted = chosen & (first >= 0) & (second >= 0)
    return (first[counted] == second[counted]).double().mean().item()


def chance_of_equals(first: Int[Tensor, " n"], second: Int[Tensor, " m"]) -> float:
    """Share of equal labels among all pairs of the two sets: what matching at random gives."""
    first, second = first[first >= 0], second[second >= 0]
    classes = int(torch.cat([first, second]).max()) + 1
    shares = [torch.bincount(labels, minlength=classes).double() / len(labels) for labels in (first, second)]
    return (shares[0] * shares[1]).sum().item()
