"""The Fréchet distance between two sets of features, each modelled as a Gaussian (Heusel et al., 2017), in float64."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


class Moments:
    """Mean and covariance of features that arrive in batches, in the memory of one d × d matrix.

    Sums are taken around the first batch's mean, so that a large common offset does not cost precision.
    """

    def __init__(self) -> None:
        self.count = 0
        self._origin: Tensor | None = None
        self._sum = self._products = torch.empty(0)

    def add(self, features: Float[Tensor, "b d"]) -> None:
        rows = features.detach().cpu().double()  # in this order: Apple GPUs have no float64
        if self._origin is None:
            dim = rows.shape[1]
            self._origin = rows.mean(0)
            self._sum, self._products = rows.new_zeros(dim), rows.new_zeros(dim, dim)
        shifted = rows - self._origin
        self.count += len(rows)
        self._sum = self._sum + shifted.sum(0)
        self._products = self._products + shifted.mT @ shifted

    @property
    def mean(self) -> Float[Tensor, " d"]:
        assert self._origin is not None, "no features were added"
        return self._origin + self._sum / self.count

    @property
    def covariance(self) -> Float[Tensor, "d d"]:
        """With the divisor n − 1."""
        assert self.count > 1, "a covariance needs two rows"
        return (self._products - torch.outer(self._sum, self._sum) / self.count) / (self.count - 1)


def frechet_distance(a: Moments, b: Moments) -> float:
    """|μ₁ − μ₂|² + tr(C₁ + C₂ − 2 (C₁ C₂)^½).

    With any factor F of C₁ = F Fᵀ, C₁ C₂ has the eigenvalues of the symmetric Fᵀ C₂ F, so the trace of its root needs
    no matrix root, only eigenvalues.
    """
    first, second = a.covariance, b.covariance
    factor = _factor(first)
    cross = torch.linalg.eigvalsh(factor.mT @ second @ factor).clamp(min=0).sqrt().sum()
    spread = first.trace() + second.trace() - 2 * cross
    return float((a.mean - b.mean).square().sum() + spread)


def _factor(covariance: Float[Tensor, "d d"]) -> Float[Tensor, "d d"]:
    """F with F Fᵀ = C: Cholesky's, which takes a small part of the time of eigenvectors. Those serve where C has no
    full rank, as with fewer images than channels."""
    factor, failed = torch.linalg.cholesky_ex(covariance)
    if not failed:
        return factor
    values, vectors = torch.linalg.eigh(covariance)
    return vectors * values.clamp(min=0).sqrt()
