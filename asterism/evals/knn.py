"""Weighted k-nearest-neighbour classification with frozen features: how well classes are already separated.

The protocol of DINO: images are resized (bicubic, 256 for a crop of 224; smaller encoders see whole images) and
centre-cropped; the class token after the last norm is normalised to unit length; each of the k most similar training
images votes for its class with weight exp(cosine / 0.07). `knn.label_share=0.01` or `0.1` gives the semi-supervised
variant, `knn.label_list=FILE` that of a published list.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from asterism.data.parts import Parts
from asterism.evals.base import Evaluation, ProtocolConfig
from asterism.evals.baselines import concept_baselines
from asterism.evals.few_labels import FewLabelsConfig, labelled_part
from asterism.evals.settings import PooledConfig, VotingConfig, pooled_vectors
from asterism.features.extract import count_unreadable
from asterism.nn.encoder import Encoder
from asterism.ops.knn import clip_neighbours, knn_accuracy
from asterism.viz.bar import Bar


class KnnConfig(FewLabelsConfig, PooledConfig, VotingConfig):
    """Constants of the protocol; the defaults are those of the papers."""


class Knn(Evaluation):
    """Top-1 and top-5 accuracy for every k."""

    Config = KnnConfig
    config: KnnConfig

    def __init__(self, config: KnnConfig, parts: Parts) -> None:
        super().__init__(config, replace(parts, train=labelled_part(parts.train, config)))

    @classmethod
    def value_names(cls, config: ProtocolConfig) -> list[str]:
        assert isinstance(config, KnnConfig)
        return [*(f"top{top}_k{k}" for k in config.k for top in (1, 5)), "unreadable_images"]

    def measure(self, encoder: Encoder) -> Iterator[tuple[str, float]]:
        bank, queries = (pooled_vectors(self.config, encoder, part) for part in (self.parts.train, self.parts.test))
        classes = 1 + int(torch.cat([bank.labels, queries.labels]).max())
        with Bar("knn", len(bank.labels)) as bar:
            accuracy = knn_accuracy(
                bank.features,
                bank.labels,
                queries.features,
                queries.labels,
                self.config.k,
                self.config.temperature,
                classes,
                bar.advance,
            )
        yield from accuracy.items()
        yield from count_unreadable(bank, queries)

    def baselines(self, encoder: Encoder) -> dict[str, Encoder]:
        return concept_baselines(encoder) if self.config.feature == "sparse" else super().baselines(encoder)

    def constants(self, encoder: Encoder) -> dict[str, Any]:
        allowed = clip_neighbours(self.config.k, len(self.parts.train))
        return super().constants(encoder) | {"k": allowed} | self.config.pixels(encoder)

    def notes(self) -> list[str]:
        images = len(self.parts.train)
        return super().notes() + self.config.clipped(images, f"{images}, the number of training images")
