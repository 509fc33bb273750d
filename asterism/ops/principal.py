"""Principal components: the best description of rows by a mean and a few directions."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def rank_approximation(rows: Float[Tensor, "*b m d"], rank: int) -> Float[Tensor, "*b m d"]:
    """Each matrix of rows by its own mean and its own first `rank` components."""
    mean = rows.mean(dim=-2, keepdim=True)
    u, s, vh = torch.linalg.svd(rows - mean, full_matrices=False)
    return mean + (u[..., :rank] * s[..., None, :rank]) @ vh[..., :rank, :]


def principal_basis(rows: Float[Tensor, "m d"], rank: int) -> tuple[Float[Tensor, " d"], Float[Tensor, "k d"]]:
    """The mean of the rows and their first `rank` components, as orthonormal rows, the largest first.

    Many rows, few channels: the eigenvectors of the covariance, which is summed in double precision.
    """
    mean = rows.double().mean(dim=0)
    centred = rows.double() - mean
    _, vectors = torch.linalg.eigh(centred.T @ centred)
    return mean.to(rows), vectors.flip(1)[:, :rank].T.to(rows)


def project(
    rows: Float[Tensor, "*b m d"], mean: Float[Tensor, " d"], basis: Float[Tensor, "k d"]
) -> Float[Tensor, "*b m d"]:
    """Rows as a basis can describe them."""
    return mean + (rows - mean) @ basis.T @ basis
