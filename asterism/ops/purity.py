"""How well unlabelled groups agree with true classes, and how evenly groups are used."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def purity(mass: Float[Tensor, "*b g c"]) -> Float[Tensor, "*b"]:
    """Share of all mass that belongs to the largest class of its group; `mass` of each group in each class.

    1 where every group holds one class alone, and never below the share of the largest class of all.
    """
    return mass.amax(-1).sum(-1) / mass.sum((-2, -1)).clamp_min(torch.finfo(mass.dtype).tiny)


def largest_share(mass: Float[Tensor, "*b g c"]) -> Float[Tensor, "*b"]:
    """The purity of a single group that holds everything: what any grouping reaches at least."""
    return purity(mass.sum(-2, keepdim=True))


def effective_count(counts: Float[Tensor, "*b g"]) -> Float[Tensor, "*b"]:
    """Number of groups that equal use would need for the same entropy: 1 for a single one, g for all alike."""
    shares = counts / counts.sum(-1, keepdim=True).clamp_min(torch.finfo(counts.dtype).tiny)
    return torch.special.entr(shares).sum(-1).exp()
