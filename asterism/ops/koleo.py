"""The Kozachenko–Leonenko (KoLeo) loss: keeps the tokens of a group apart (Sablayrolles et al., 2018)."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from asterism.ops.precision import at_least_float32

_FLOOR = 1e-8


def koleo(tokens: Float[Tensor, "b r d"], unit_of_length: float = 2.0) -> Float[Tensor, ""]:
    """Mean over all tokens of −log(distance to the nearest other token of the same group), on the unit sphere.

    Distances are in units of `unit_of_length`: the diameter 2 as in STELLAR, or 1 as in MaSSL, which adds the constant
    −ln 2. The choice of neighbour has no gradient; that of the distance reaches both tokens.

    >>> tokens = torch.tensor([[[1.0, 0.0], [-1.0, 0.0]]])  # as far apart as unit vectors can be
    >>> round(float(koleo(tokens)), 4) + 0.0, round(float(koleo(tokens, unit_of_length=1)), 4)
    (0.0, -0.6931)
    """
    assert tokens.shape[1] > 1, "one token has no neighbour"
    unit = F.normalize(at_least_float32(tokens), dim=-1, eps=_FLOOR)
    neighbour = unit.gather(1, _nearest(unit.detach())[..., None].expand_as(unit))
    distance = (unit - neighbour + _FLOOR).norm(dim=-1)
    return -torch.log(distance / unit_of_length + _FLOOR).mean()


def _nearest(unit: Float[Tensor, "b r d"]) -> Int[Tensor, "b r"]:
    with torch.autocast(unit.device.type, enabled=False):  # half-precision cosines would often pick another neighbour
        cosine = unit @ unit.mT
    cosine.diagonal(dim1=-2, dim2=-1).fill_(-torch.inf)
    return cosine.argmax(dim=-1)
