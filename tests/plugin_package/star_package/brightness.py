"""A protocol: the mean feature of the first image."""

from __future__ import annotations

from collections.abc import Iterator

from asterism.evals.base import Evaluation, ProtocolConfig
from asterism.nn.encoder import Encoder


class Brightness(Evaluation):
    """One number."""

    Config = ProtocolConfig

    def measure(self, encoder: Encoder) -> Iterator[tuple[str, float]]:
        yield "mean", float(encoder.encode([self.parts.test[0].image]).cls.mean())
