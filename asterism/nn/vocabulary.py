"""A vocabulary of concepts: prototypes that projected tokens are compared with (STELLAR, equation 6)."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import nn

from asterism.config import Config
from asterism.nn.heads import ProjectionHead


class VocabularyConfig(Config):
    """Projector and prototypes of one kind of token (section 3.2)."""

    prototypes: int = Field(default=16384, gt=1)  # K
    hidden_dim: int = Field(default=2048, gt=0)
    bottleneck_dim: int = Field(default=256, gt=0)


class Vocabulary(ProjectionHead):
    """h, a projector onto the unit sphere, and C, prototypes of any length in the same space."""

    def __init__(self, in_dim: int, config: VocabularyConfig) -> None:
        super().__init__(in_dim, config.hidden_dim, config.bottleneck_dim, layers=2, epsilon=1e-7)
        self.prototypes = nn.Parameter(torch.randn(config.prototypes, config.bottleneck_dim))
