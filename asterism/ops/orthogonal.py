"""The orthogonal matrix nearest to a given one, approximately: the direction of Muon's updates."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from asterism.ops.precision import at_least_float32

# a, b and c of the odd polynomial a·s + b·s³ + c·s⁵ that each round applies to the singular values s. Each is the one
# that stays closest to 1 where the rounds before it take the values from 0.01 to 1 (Amsel et al., 2025), with 1 % to
# spare at the upper end. Together they take 0.01 … 1 to 0.72 … 1.28. Five rounds of the one polynomial of Jordan et al.
# (2024) end at 0.68 … 1.13, and raise values below 0.01 more. lab/benchmarks/orthogonal.py derives and compares them.
POLYNOMIALS = ((8.0172, -22.941, 16.6113), (3.6119, -2.6521, 0.5123), (2.661, -1.9451, 0.4357))

_SPARE = 1.01  # the first polynomial explodes above 1.01: rounding must not lead there


def orthogonalize(matrices: Float[Tensor, "n r c"]) -> Float[Tensor, "n r c"]:
    """U Vᵀ of each matrix U S Vᵀ, with singular values near 1 instead of exactly 1, by Newton–Schulz iterations.

    Only products are needed, no decomposition:

    >>> q = orthogonalize(torch.tensor([[[3.0, 0.0], [0.0, -0.1]]]))
    >>> q[0, 0, 0] > 0.7, q[0, 1, 1] < -0.7, q[0, 0, 1]
    (tensor(True), tensor(True), tensor(0.))
    """
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices  # the Gram matrix of the shorter side is the smaller one
    norm = at_least_float32(x).norm(dim=(-2, -1), keepdim=True)
    x = (x / (_SPARE * norm).clamp(min=torch.finfo(norm.dtype).tiny)).to(matrices.dtype)
    for a, b, c in POLYNOMIALS:
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)  # a X + (b G + c G²) X
    return x.mT if tall else x
