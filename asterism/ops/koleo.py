"""The Kozachenko–Leonenko spread loss: keeps the tokens of one image apart (Sablayrolles et al., 2018)."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

_FLOOR = 1e-8


def koleo(tokens: Float[Tensor, "b r d"]) -> Float[Tensor, ""]:
    """Mean over all tokens of −log(½ · distance to the nearest other token of the same image), on the unit sphere.

    The choice of the neighbour carries no gradient, the distance carries it to both ends.
    """
    assert tokens.shape[1] > 1, "one token has no neighbour"
    unit = F.normalize(tokens.float(), dim=-1, eps=_FLOOR)
    neighbour = unit.gather(1, _nearest(unit.detach())[..., None].expand_as(unit))
    distance = (unit - neighbour + _FLOOR).norm(dim=-1)
    return -torch.log(distance / 2 + _FLOOR).mean()


def _nearest(unit: Float[Tensor, "b r d"]) -> Int[Tensor, "b r"]:
    with torch.autocast(unit.device.type, enabled=False):  # half-precision cosines would often pick another neighbour
        cosine = unit @ unit.mT
    cosine.diagonal(dim1=-2, dim2=-1).fill_(-torch.inf)
    return cosine.argmax(dim=-1)
