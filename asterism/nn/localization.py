"""Localisation of concepts: every patch is divided among the concept tokens (STELLAR, equation 5)."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from asterism.config import Config
from asterism.ranges import Temperature

_FLOOR = 1e-7  # smallest norm


class LocalizationConfig(Config):
    """How sharply patches are divided among concepts."""

    temperature: Temperature = 0.06  # t, divides cosines


class Localization(nn.Module):
    """L = softmax over concepts of cos(U W1, S W2) / t; the rows of L, one per patch, sum to 1."""

    def __init__(self, dim: int, temperature: float = 0.06) -> None:
        super().__init__()
        self.dense = nn.Linear(dim, dim)  # W1
        self.sparse = nn.Linear(dim, dim)  # W2
        self.temperature = temperature

    def forward(self, U: Float[Tensor, "b n d"], S: Float[Tensor, "b r d"]) -> Float[Tensor, "b n r"]:
        # Differs from the paper: W1 and W2 have biases, as in the published code.
        dense = F.normalize(self.dense(U), dim=-1, eps=_FLOOR)
        sparse = F.normalize(self.sparse(S), dim=-1, eps=_FLOOR)
        return (dense @ sparse.mT / self.temperature).softmax(dim=-1)
