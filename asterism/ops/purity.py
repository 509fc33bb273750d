"""How well unlabelled groups agree with true classes, and how evenly groups are used."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def purity(mass: Float[Tensor, "*b g c"]) -> Float[Tensor, "*b"]:
    """Share of all mass that belongs to the largest class of its group; `mass` of each group in each class.

    1 where every group holds one class alone, and never below the share of the largest class of all.
    """
    return mass.amax(-1).sum(-1) / mass.sum((-2, -1)).clamp_min(torch.finfo(mass.dtype).tiny)


def largest_share(mass: Float[Tensor, "*b g c"]) -> Float[Tensor, "*b"]:
    """The purity of a single group that holds everything: what any grouping reaches at least."""
    return purity(mass.sum(-2, keepdim=True))


def group_counts(group: Int[Tensor, " n"], label: Int[Tensor, " n"], groups: int, classes: int) -> Float[Tensor, "g c"]:
    """How many things of each class are in each group; labels below 0 count nowhere."""
    known = label >= 0
    places = group[known] * classes + label[known]
    return torch.bincount(places, minlength=groups * classes).view(groups, classes).double()


def effective_count(counts: Float[Tensor, "*b g"]) -> Float[Tensor, "*b"]:
    """Number of groups that equal use would need for the same entropy: 1 for a single one, g for all alike."""
    shares = counts / counts.sum(-1, keepdim=True).clamp_min(torch.finfo(counts.dtype).tiny)
    return torch.special.entr(shares).sum(-1).exp()


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
