"""The prior π over clusters: the share of the data that each of K clusters should hold (FLSL, equation 9).

>>> prior_shares(None, 4).tolist()
[0.25, 0.25, 0.25, 0.25]
>>> prior_shares(PowerLaw(exponent=1.0), 4).mul(25).round().tolist()
[12.0, 6.0, 4.0, 3.0]
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from asterism.config import Config
from asterism.ranges import NonNegative, Share


class PowerLaw(Config):
    """A prior whose k-th cluster has a share proportional to k^(−exponent): few large clusters, many small ones."""

    exponent: NonNegative = 0.25


Prior = tuple[Share, ...] | PowerLaw | None  # K shares that sum to 1, or a rule; None: all equal


def check_prior(prior: Prior, clusters: int) -> None:
    """Raise if the given shares are not a distribution over the clusters."""
    if not isinstance(prior, tuple):
        return
    if len(prior) != clusters:
        raise ValueError(f"prior has {len(prior)} shares for out_dim = {clusters} clusters; give one each")
    if min(prior) <= 0:
        raise ValueError(f"prior contains {min(prior)}; every cluster needs a share above 0")
    total = math.fsum(prior)
    if abs(total - 1) > 1e-4:
        raise ValueError(f"the shares of prior sum to {total:.6g}; they must sum to 1: divide each by {total:.6g}")


def prior_shares(prior: Prior, clusters: int) -> Float[Tensor, " k"]:
    """π as numbers that sum to 1, in double precision."""
    if isinstance(prior, tuple):
        return torch.tensor(prior, dtype=torch.float64)
    exponent = prior.exponent if prior is not None else 0.0
    shares = torch.arange(1, clusters + 1, dtype=torch.float64) ** -exponent
    return shares / shares.sum()
