"""Linear classification from concepts: what a handful of tokens per image tells about its class.

The protocol of STELLAR: the mean concept token (or, with `feature=cls` and `feature=patches`, the class token and the
mean patch of Table 9) → layer norm → linear, AdamW with cosine. Learning rates {1, 2, 5}·10⁻⁵…10⁻² and batch sizes
64…8192 are tried; one pair is chosen on a tenth of the training images, never on the test images.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from pydantic import Field, field_validator
from torch import nn

from asterism.data import Source
from asterism.evals.base import Evaluation, ProtocolConfig
from asterism.evals.classifier import Setting, accuracies, check_classes, choose_classifier
from asterism.evals.features import Extracted, Feature, extract, pooled
from asterism.evals.heads import linear_layer
from asterism.nn.encoder import Encoder


class LinearSparseConfig(ProtocolConfig):
    """Constants of the protocol; the grid is that of the paper."""

    feature: Feature = "sparse"  # sparse: mean concept token; cls: class token; patches: mean patch token
    learning_rates: tuple[float, ...] = (1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2)
    head_batches: tuple[int, ...] = (64, 128, 256, 512, 1024, 2048, 4096, 8192)  # images per step of the heads
    epochs: int = Field(100, ge=1)
    weight_decay: float = Field(0.01, ge=0)
    resize: float = Field(256 / 224, ge=1)  # shorter side before the centre crop, in crops
    chosen_on: float = Field(0.1, gt=0, lt=1)  # share of every class kept aside to choose from the grid

    @field_validator("learning_rates", "head_batches")
    @classmethod
    def _positive(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if not value or min(value) <= 0:
            raise ValueError("give one or several values above 0")
        return value


class LinearSparse(Evaluation):
    """Top-1 and top-5 accuracy of the classifier chosen on images kept aside."""

    Config = LinearSparseConfig
    config: LinearSparseConfig

    def measure(self, encoder: Encoder) -> Iterator[tuple[str, float]]:
        config = self.config
        train = self._features(encoder, self.parts.train)
        check_classes(self.parts.train, train.labels)
        test = self._features(encoder, self.parts.test)
        classes = 1 + int(torch.cat([train.labels, test.labels]).max())
        chosen = choose_classifier(
            train,
            [Setting(rate, batch) for batch in config.head_batches for rate in config.learning_rates],
            partial(_head, train.features.shape[1], classes),
            partial(torch.optim.AdamW, weight_decay=config.weight_decay),
            classes=classes,
            epochs=config.epochs,
            kept_aside=config.chosen_on,
            seed=config.seed,
            device=next(encoder.parameters()).device,
            title="linear-sparse",
        )
        yield from accuracies(chosen.head, test.features, test.labels, torch.arange(len(test.labels)), classes).items()
        yield "top1_kept_aside", chosen.accuracy
        yield "chosen_learning_rate", chosen.setting.learning_rate
        yield "chosen_batch", float(chosen.setting.batch_size)
        if unreadable := len(train.unreadable) + len(test.unreadable):
            yield "unreadable_images", float(unreadable)

    def constants(self, encoder: Encoder) -> dict[str, Any]:
        return super().constants(encoder) | {
            "resize": round(self.config.resize * encoder.image_size),
            "crop": encoder.image_size,
            "optimizer": "adamw, cosine",
        }

    def _features(self, encoder: Encoder, source: Source) -> Extracted:
        return extract(
            encoder,
            source,
            lambda features: pooled(features, self.config.feature),
            resize=round(self.config.resize * encoder.image_size),
            batch_size=self.config.batch_size,
            workers=self.config.workers,
            layer=self.config.feature,
        )


def _head(dim: int, classes: int, key: int) -> nn.Module:
    return nn.Sequential(nn.LayerNorm(dim), linear_layer(dim, classes, key))
