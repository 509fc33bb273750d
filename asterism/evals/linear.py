"""Linear classification of frozen features: whether classes are linearly separable.

The protocol of DINO and iBOT. Features: the class tokens of the last four blocks concatenated (small networks), or the
last class token with the mean patch token (768 channels and more); without a class token, as in Swin, the mean patch
token of the last four blocks, which may span two stages. SGD with momentum 0.9, cosine schedule, 100 epochs. A grid of
learning rates {1…9}·10⁻⁴…10⁰ · batch / 256 is trained at once on features that are extracted once, so images are not
augmented. The rate is chosen on a tenth of the training images, never on the test images. `linear.label_share` and
`linear.label_list` train on a part of the labels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from asterism.data import Source
from asterism.data.parts import Parts
from asterism.evals.base import Evaluation, ProtocolConfig
from asterism.evals.few_labels import FewLabelsConfig, labelled_part
from asterism.evals.probes import GridConfig, Setting, check_classes, linear_layer, probe
from asterism.evals.settings import CroppedConfig
from asterism.features.extract import Extracted, count_unreadable, extract
from asterism.nn.encoder import Encoder
from asterism.nn.linear_features import LinearFeature, chosen_feature, linear_feature
from asterism.ranges import Count, Positive, Several


class LinearConfig(FewLabelsConfig, CroppedConfig, GridConfig):
    """Constants of the protocol; the defaults are those of the papers."""

    feature: LinearFeature = "auto"
    learning_rates: Several[Positive] = tuple(n * 10.0**e for e in range(-4, 1) for n in range(1, 10))  # at batch 256
    head_batch: Count = 1024  # images per step of the heads


class Linear(Evaluation):
    """Top-1 and top-5 accuracy of the classifier chosen on held-out training images."""

    Config = LinearConfig
    config: LinearConfig

    def __init__(self, config: LinearConfig, parts: Parts) -> None:
        super().__init__(config, replace(parts, train=labelled_part(parts.train, config)))

    @classmethod
    def value_names(cls, config: ProtocolConfig) -> list[str]:
        return ["top1", "top5", "top1_kept_aside", "chosen_learning_rate", "unreadable_images"]

    def measure(self, encoder: Encoder) -> Iterator[tuple[str, float]]:
        config = self.config
        train = self._features(encoder, self.parts.train)
        check_classes(self.parts.train, train.labels)
        test = self._features(encoder, self.parts.test)
        batch = min(config.head_batch, len(train.labels))
        values, _ = probe(
            train,
            test,
            [Setting(rate * batch / 256, batch) for rate in config.learning_rates],
            linear_layer,
            partial(torch.optim.SGD, lr=0.0, momentum=0.9),
            config,
            device=next(encoder.parameters()).device,
            title="linear",
        )
        yield from values.items()
        yield from count_unreadable(train, test)

    def constants(self, encoder: Encoder) -> dict[str, Any]:
        found = {
            "feature": chosen_feature(self.config.feature, encoder.backbone),
            "optimizer": "sgd, momentum 0.9, cosine",
        }
        return super().constants(encoder) | found | self.config.pixels(encoder)

    def _features(self, encoder: Encoder, source: Source) -> Extracted:
        feature = chosen_feature(self.config.feature, encoder.backbone)
        return extract(
            encoder,
            source,
            lambda images: _vectors(encoder, images, feature),
            resize=self.config.pixels(encoder)["resize"],
            batch_size=self.config.batch_size,
            workers=self.config.workers,
            layer=feature,
        )


@torch.no_grad()
def _vectors(encoder: Encoder, images: UInt8[Tensor, "b 3 s s"], feature: LinearFeature) -> Float[Tensor, "b d"]:
    return linear_feature(encoder.backbone, encoder.normalise(images), feature)
