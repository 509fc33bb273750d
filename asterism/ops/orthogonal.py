"""The orthogonal matrix nearest to a given one, approximately: the direction of Muon's updates."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

# Of the odd polynomial a·s + b·s³ + c·s⁵ that each round applies to the singular values s. Its slope at zero is
# steep: five rounds take values from 1e-2 … 1 to about 0.7 … 1.2, though never to exactly 1 (Jordan et al., 2024).
_A, _B, _C = 3.4445, -4.7750, 2.0315


def orthogonalize(matrices: Float[Tensor, "n r c"], rounds: int = 5) -> Float[Tensor, "n r c"]:
    """U Vᵀ of each matrix U S Vᵀ, with singular values near 1 instead of exactly 1, by Newton–Schulz iterations.

    Only products are needed, no decomposition:

    >>> q = orthogonalize(torch.tensor([[[3.0, 0.0], [0.0, -0.1]]]))
    >>> q[0, 0, 0] > 0.6, q[0, 1, 1] < -0.6, q[0, 0, 1]
    (tensor(True), tensor(True), tensor(0.))
    """
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices  # the Gram matrix of the shorter side is the smaller one
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=torch.finfo(x.dtype).tiny)
    for _ in range(rounds):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=_B, alpha=_C), x, beta=_A)
    return x.mT if tall else x
