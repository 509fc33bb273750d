"""The orthogonal matrix nearest to a given one, approximately: the direction of Muon's updates."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

# Of the odd polynomial a·s + b·s³ + c·s⁵ that each round applies to the singular values s. Its slope at zero is
# steep: five rounds take values from 2e-3 … 1 to about 0.7 … 1.2, though never to exactly 1 (Jordan et al., 2024).
_A, _B, _C = 3.4445, -4.7750, 2.0315
# Differs from the published five: three rounds do so for values from 2e-2 on, and leave more of the order below. Small
# networks learn as much (docs/results.md), for three fifths of the products.
_ROUNDS = 3

_PRECISE = 1e-6  # machine epsilon that `_through_gram` needs; bfloat16 is too coarse for powers of the Gram matrix
_SOUND = 5  # rounds up to which it is sound: rounding may leave eigenvalues below zero, which grow twelvefold a round


def orthogonalize(matrices: Float[Tensor, "n r c"], rounds: int = _ROUNDS) -> Float[Tensor, "n r c"]:
    """U Vᵀ of each matrix U S Vᵀ, with singular values near 1 instead of exactly 1, by Newton–Schulz iterations.

    Only products are needed, no decomposition:

    >>> q = orthogonalize(torch.tensor([[[3.0, 0.0], [0.0, -0.1]]]))
    >>> q[0, 0, 0] > 0.6, q[0, 1, 1] < -0.6, q[0, 0, 1]
    (tensor(True), tensor(True), tensor(0.))
    """
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices  # the Gram matrix of the shorter side is the smaller one
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=torch.finfo(x.dtype).tiny)
    sound = rounds <= _SOUND and torch.finfo(x.dtype).eps <= _PRECISE
    cheaper = _gram_products(*x.shape[-2:], rounds) < _iterated_products(*x.shape[-2:], rounds)
    x = _through_gram(x, rounds) if sound and cheaper else _iterated(x, rounds)
    return x.mT if tall else x


def multiplications(rows: int, columns: int) -> int:
    """What `orthogonalize` needs for a matrix of this shape in float32."""
    short, long = sorted((rows, columns))
    return min(_iterated_products(short, long, _ROUNDS), _gram_products(short, long, _ROUNDS))


def _iterated_products(short: int, long: int, rounds: int) -> int:
    return rounds * short**2 * (2 * long + short)


def _gram_products(short: int, long: int, rounds: int) -> int:
    return short**2 * (2 * long + (4 * rounds - 3) * short)


def _iterated(x: Float[Tensor, "n r c"], rounds: int) -> Float[Tensor, "n r c"]:
    """X ← P X with P = a I + b G + c G² and G = X Xᵀ, in every round."""
    for _ in range(rounds):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=_B, alpha=_C), x, beta=_A)
    return x


def _through_gram(x: Float[Tensor, "n r c"], rounds: int) -> Float[Tensor, "n r c"]:
    """The same with two long products in all: P X has the Gram matrix P G P, so that the rounds happen there.

    Rounding changes small eigenvalues of G. In few rounds this hardly changes P, which is nearly a I for them.
    """
    gram, total = x @ x.mT, None
    for number in range(rounds):
        p = torch.baddbmm(gram, gram, gram, beta=_B, alpha=_C)
        p.diagonal(dim1=-2, dim2=-1).add_(_A)
        total = p if total is None else p @ total
        if number < rounds - 1:
            gram = p @ gram @ p
    return x if total is None else total @ x
