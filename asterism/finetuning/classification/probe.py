"""Linear probe with augmentation: linear classifiers on the frozen network, one per learning rate, trained together.

The protocol of iBOT: every image is cropped and flipped anew in each epoch, so features cannot be stored (`evaluate
--protocols linear` stores them, without augmentation). All classifiers see the same features, computed once. Features
are those of `asterism.nn.linear_features`: the class tokens of the last four blocks for small networks, the last class
token with the mean patch for large ones, and for Swin (no class token) the mean patch of its last four blocks.
SGD with momentum 0.9, no weight decay, cosine. The rate is chosen on held-out training images.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float, Int, UInt8
from pydantic import field_validator
from torch import Tensor, nn
from torch.nn import functional as F

from asterism.data.loader import Make
from asterism.evals.probes import linear_layer
from asterism.finetuning.classification.classify import Accuracy, Classes, Classify, Label
from asterism.finetuning.classification.timm_images import AugmentationConfig, TimmImages
from asterism.finetuning.task import LinearClassifier, Metric, Start, Task, TaskBatch, TaskConfig
from asterism.nn.linear_features import (
    LinearFeature,
    chosen_feature,
    feature_layers,
    linear_feature,
    vector_of_layers,
)
from asterism.ops import collectives
from asterism.ranges import Positive
from asterism.types import Losses, Progress


class ProbeConfig(TaskConfig):
    """Constants of the protocol."""

    recipe_defaults: ClassVar[Mapping[str, Any]] = MappingProxyType(
        {
            "optim": {
                "name": "sgd",
                "lr": 1.0,  # the classifiers multiply it by theirs
                "min_lr": 0.0,
                "warmup_epochs": 0,
                "layer_decay": 1.0,
                "weight_decay": 0.0,
            },
            "source": {"drop_path": 0.0},
            "average": None,
            "validation": {"patience": None},
        }
    )

    name: Literal["probe"] = "probe"
    feature: LinearFeature = "auto"
    learning_rates: tuple[Positive, ...] = tuple(
        n * 10.0**e for e in range(-4, 1) for n in range(1, 10)
    )  # at batch 256
    augmentation: AugmentationConfig = AugmentationConfig(randaugment=None, erasing=0.0)

    @field_validator("learning_rates")
    @classmethod
    def _some(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if not value:
            raise ValueError("give one or several learning rates")
        return value

    @property
    def needs_held_out(self) -> str | None:
        count = len(self.learning_rates)
        return None if count == 1 else f"one of the {count} learning rates is chosen on held-out training images"


@dataclass(frozen=True)
class ProbeClasses(Classes):
    """The probabilities of the chosen classifier, and the class that each classifier finds most probable."""

    found: Int[Tensor, " rates"]


class Probe(Classify):
    """A frozen network with many linear classifiers, one of which is chosen."""

    Config = ProbeConfig  # type: ignore[assignment]
    config: ProbeConfig  # type: ignore[assignment]
    chosen: Int[Tensor, ""]

    def __init__(self, config: ProbeConfig, start: Start) -> None:
        Task.__init__(self, config, start)
        self.backbone.requires_grad_(False)
        self.feature = chosen_feature(config.feature, start.backbone)
        width = self._width(start)
        self.heads = nn.ModuleList(linear_layer(width, len(start.classes), start.seed) for _ in config.learning_rates)
        self.register_buffer("chosen", torch.tensor(0))

    def train(self, mode: bool = True) -> Probe:
        """The network stays in evaluation mode."""
        super().train(mode)
        self.backbone.eval()
        return self

    def learning_rate_scale(self, name: str) -> float:
        return self.config.learning_rates[int(name.split(".")[1])]

    def samples(self) -> Make[TaskBatch]:
        return TimmImages(self.config.augmentation, self.image_size, self.mean, self.std)

    def loss(self, batch: TaskBatch, progress: Progress) -> Losses:
        """The sum over classifiers: each gets the gradient of its own cross-entropy."""
        assert isinstance(batch.images, Tensor)
        (labels,) = batch.truths
        with torch.no_grad():
            vectors = linear_feature(self.backbone, batch.images, self.feature).float()
        losses = torch.stack([F.cross_entropy(head(vectors), labels) for head in self.heads])
        return Losses({"cross_entropy": losses.sum()}, metrics={"lowest_cross_entropy": losses.detach().min()})

    def predict(self, images: Sequence[UInt8[Tensor, "3 _ _"]]) -> list[ProbeClasses]:  # type: ignore[override]
        vectors = linear_feature(self.backbone, self._pixels(images), self.feature).float()
        logits = torch.stack([head(vectors) for head in self.heads], dim=1)
        found = logits.argmax(dim=2).cpu()
        scores = logits[:, int(self.chosen)].softmax(dim=1).cpu()
        return [ProbeClasses(row, self.classes, each) for row, each in zip(scores, found, strict=True)]

    def choosing_metric(self) -> Metric:
        return _BestAccuracy(self.config.learning_rates)

    def decide(self, values: Mapping[str, float]) -> None:
        self.chosen.fill_(int(values["classifier"]))

    def named_outputs(self, pixels: Float[Tensor, "b 3 h w"]) -> dict[str, Tensor]:
        layers = feature_layers(self.backbone, pixels, self.feature)
        vectors = vector_of_layers(self.backbone, layers, self.feature)
        scores = self.heads[int(self.chosen)](vectors).float().softmax(dim=1)
        return {"cls": self.backbone.pool(layers[-1]), "patches": layers[-1].patches, "scores": scores}

    def probed_layer(self) -> None:
        """None: its classifiers are probes."""

    def linear_classifier(self) -> LinearClassifier | None:
        if self.feature not in ("cls", "mean"):
            return None
        layer = self.heads[int(self.chosen)]
        assert isinstance(layer, nn.Linear)
        return LinearClassifier(layer.weight, layer.bias, self.feature == "mean", self.classes)

    def metric(self) -> Metric:
        return Accuracy(len(self.classes))

    @torch.no_grad()
    def _width(self, start: Start) -> int:
        weight = next(start.backbone.parameters())
        blank = weight.new_zeros(1, 3, start.image_size, start.image_size)
        return linear_feature(start.backbone, blank, self.feature).shape[1]


class _BestAccuracy:
    """Top-1 of every classifier on held-out training images, in percent; the best one is the result."""

    def __init__(self, rates: Sequence[float]) -> None:
        self._rates = rates
        self._right = torch.zeros(len(rates), dtype=torch.int64)
        self._total = torch.zeros((), dtype=torch.int64)

    def update(self, predictions: Sequence[ProbeClasses], truths: Sequence[Label]) -> None:
        for prediction, truth in zip(predictions, truths, strict=True):
            self._right += prediction.found == truth.index
            self._total += 1

    def gathered(self) -> dict[str, float]:
        sums = collectives.all_reduce_sum(torch.cat([self._right, self._total[None]])).double()
        scores: Float[Tensor, " rates"] = 100 * sums[:-1] / sums[-1]
        best = int(scores.argmax())
        return {"top1": float(scores[best]), "classifier": float(best), "learning_rate": self._rates[best]}
