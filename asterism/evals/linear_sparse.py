"""Linear classification from concepts: how well a handful of tokens per image predicts its class.

The protocol of STELLAR: the mean concept token (or, with `feature=cls` and `feature=patches`, the class token and the
mean patch of Table 9) → layer norm → linear, AdamW with cosine. Learning rates {1, 2, 5}·10⁻⁵…10⁻² and batch sizes
64…8192 are tried; one pair is chosen on a tenth of the training images, never on the test images.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from asterism.data.parts import Parts
from asterism.evals.base import Evaluation, ProtocolConfig
from asterism.evals.baselines import concept_baselines
from asterism.evals.few_labels import FewLabelsConfig, labelled_part
from asterism.evals.probes import GridConfig, Setting, check_classes, linear_layer, probe
from asterism.evals.settings import PooledConfig, pooled_vectors
from asterism.features.extract import Feature, count_unreadable
from asterism.nn.encoder import Encoder
from asterism.ranges import Count, NonNegative, Positive, Several


class LinearSparseConfig(FewLabelsConfig, PooledConfig, GridConfig):
    """Constants of the protocol; the grid is that of the paper."""

    feature: Feature = "sparse"  # as of `PooledConfig`
    learning_rates: Several[Positive] = (1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2)
    head_batches: Several[Count] = (64, 128, 256, 512, 1024, 2048, 4096, 8192)  # images per step of the heads
    weight_decay: NonNegative = 0.01


class LinearSparse(Evaluation):
    """Top-1 and top-5 accuracy of the classifier chosen on held-out training images."""

    Config = LinearSparseConfig
    config: LinearSparseConfig

    def __init__(self, config: LinearSparseConfig, parts: Parts) -> None:
        super().__init__(config, replace(parts, train=labelled_part(parts.train, config)))

    @classmethod
    def value_names(cls, config: ProtocolConfig) -> list[str]:
        return ["top1", "top5", "top1_kept_aside", "chosen_learning_rate", "chosen_batch", "unreadable_images"]

    def measure(self, encoder: Encoder) -> Iterator[tuple[str, float]]:
        config = self.config
        train = pooled_vectors(config, encoder, self.parts.train)
        check_classes(self.parts.train, train.labels)
        test = pooled_vectors(config, encoder, self.parts.test)
        values, chosen = probe(
            train,
            test,
            [Setting(rate, batch) for batch in config.head_batches for rate in config.learning_rates],
            _head,
            partial(torch.optim.AdamW, weight_decay=config.weight_decay),
            config,
            device=next(encoder.parameters()).device,
            title="linear-sparse",
        )
        yield from values.items()
        yield "chosen_batch", float(chosen.batch_size)
        yield from count_unreadable(train, test)

    def baselines(self, encoder: Encoder) -> dict[str, Encoder]:
        return concept_baselines(encoder) if self.config.feature == "sparse" else super().baselines(encoder)

    def constants(self, encoder: Encoder) -> dict[str, Any]:
        return super().constants(encoder) | self.config.pixels(encoder) | {"optimizer": "adamw, cosine"}


def _head(dim: int, classes: int, key: int) -> nn.Module:
    return nn.Sequential(nn.LayerNorm(dim), linear_layer(dim, classes, key))
