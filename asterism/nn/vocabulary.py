"""A vocabulary of concepts: prototypes that projected tokens are compared with (STELLAR, equation 6)."""

from __future__ import annotations

import torch
from torch import nn

from asterism.config import Config
from asterism.nn.heads import ProjectionHead
from asterism.ranges import Count, CountFromTwo


class VocabularyConfig(Config):
    """Projector and prototypes of one kind of token (section 3.2)."""

    prototypes: CountFromTwo = 16384  # K
    hidden_dim: Count = 2048
    bottleneck_dim: Count = 256


class Vocabulary(ProjectionHead):
    """h, a projector onto the unit sphere, and C, prototypes of any length in the same space."""

    def __init__(self, in_dim: int, config: VocabularyConfig) -> None:
        super().__init__(in_dim, config.hidden_dim, config.bottleneck_dim, layers=2, epsilon=1e-7)
        self.prototypes = nn.Parameter(torch.randn(config.prototypes, config.bottleneck_dim))
