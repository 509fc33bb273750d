"""A vocabulary of concepts: prototypes that tokens are projected to and compared with (STELLAR, equation 6)."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from asterism.nn.heads import ProjectionHead


class Vocabulary(ProjectionHead):
    """A projector onto the unit sphere, and prototypes of any length in the same space."""

    def __init__(self, in_dim: int, prototypes: int, hidden_dim: int = 2048, bottleneck_dim: int = 256) -> None:
        super().__init__(in_dim, hidden_dim, bottleneck_dim, layers=2, epsilon=1e-7)
        self.prototypes = nn.Parameter(torch.randn(prototypes, bottleneck_dim))

    @torch.no_grad()
    def logits(self, embeddings: Float[Tensor, "rows p"]) -> Float[Tensor, "rows k"]:
        """Products of unit vectors with all prototypes, in float32: rounded to bfloat16, 1.5 % of the maxima move."""
        with torch.autocast(embeddings.device.type, enabled=False):
            return embeddings.float() @ self.prototypes.float().T
