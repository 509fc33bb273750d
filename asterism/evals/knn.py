"""Weighted k-nearest-neighbour classification with frozen features: how well classes already lie apart.

The protocol of DINO: images are resized (bicubic, 256 for a crop of 224, in that proportion for other encoders) and
centre-cropped; the class token after the last norm is brought to unit length; each of the k most similar training
images votes for its class with exp(cosine / 0.07). `knn.label_share=0.01` or `0.1` gives the semi-supervised form.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from pydantic import Field, field_validator

from asterism.data import Source, Subset
from asterism.evals.base import Evaluation, ProtocolConfig
from asterism.evals.features import Extracted, Feature, extract, pooled
from asterism.evals.parts import Parts, class_balanced, labels_of
from asterism.nn.encoder import Encoder
from asterism.ops.neighbours import clip_neighbours, knn_accuracy


class KnnConfig(ProtocolConfig):
    """Constants of the protocol; the defaults are those of the papers."""

    k: tuple[int, ...] = (10, 20, 100, 200)  # neighbours that vote; every value is reported
    temperature: float = Field(0.07, ge=0.02)  # of the votes; below 0.02 single precision overflows
    feature: Feature = "cls"  # cls: class token; patches: mean patch token; sparse: mean concept token
    resize: float = Field(256 / 224, ge=1)  # shorter side before the centre crop, in crops
    label_share: float = Field(1.0, gt=0, le=1)  # class-balanced share of the training labels

    @field_validator("k", mode="before")
    @classmethod
    def _several(cls, value: Any) -> Any:
        return (value,) if isinstance(value, int) else value

    @field_validator("k")
    @classmethod
    def _positive(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if not value or min(value) < 1:
            raise ValueError("give one or several numbers of neighbours, each at least 1")
        return value


class Knn(Evaluation):
    """Top-1 and top-5 accuracy for every k."""

    Config = KnnConfig
    config: KnnConfig

    def __init__(self, config: KnnConfig, parts: Parts) -> None:
        super().__init__(config, replace(parts, train=_share_of(parts.train, config.label_share, config.seed)))

    def measure(self, encoder: Encoder) -> Iterator[tuple[str, float]]:
        bank, queries = self._features(encoder, self.parts.train), self._features(encoder, self.parts.test)
        classes = 1 + int(torch.cat([bank.labels, queries.labels]).max())
        yield from knn_accuracy(
            bank.features,
            bank.labels,
            queries.features,
            queries.labels,
            self.config.k,
            self.config.temperature,
            classes,
        ).items()
        if unreadable := len(bank.unreadable) + len(queries.unreadable):
            yield "unreadable_images", float(unreadable)

    def constants(self, encoder: Encoder) -> dict[str, Any]:
        return super().constants(encoder) | {
            "k": clip_neighbours(self.config.k, len(self.parts.train)),
            "resize": round(self.config.resize * encoder.image_size),
            "crop": encoder.image_size,
        }

    def notes(self) -> list[str]:
        images = len(self.parts.train)
        too_many = [str(k) for k in self.config.k if k > images]
        clipped = f"k = {', '.join(too_many)} became {images}, the number of training images"
        return super().notes() + ([clipped] if too_many else [])

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


def _share_of(source: Source, share: float, seed: int) -> Source:
    return source if share == 1 else Subset(source, class_balanced(labels_of(source), share, seed))
