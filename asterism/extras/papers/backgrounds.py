"""Classification with backgrounds removed or exchanged: whether features encode the object or its surroundings.

The protocol of ImageNet-9: a classifier on frozen features is tested on every variation. Images are resized to the crop
without a margin. A classifier of the 1,000 ImageNet classes (`backgrounds.train_data=imagenet`) is correct if its class
is in the right branch; classes outside the nine branches are wrong. Without train_data the classifier is trained on
original/train, or on scenes. The gap is the accuracy with backgrounds of the same class minus that with backgrounds of
any class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from asterism.data import Scenes, Source, open_source
from asterism.data.parts import DataChoice, Parts, labels_of
from asterism.errors import UserError
from asterism.evals.base import Evaluation, ProtocolConfig
from asterism.evals.baselines import concept_baselines
from asterism.evals.probes import GridConfig, Setting, check_classes, choose_classifier, linear_layer
from asterism.evals.settings import PooledConfig, pooled_vectors
from asterism.extras.papers.imagenet9 import (
    NONE,
    VARIATIONS,
    Variations,
    from_imagenet,
    open_imagenet9,
    scene_variations,
)
from asterism.features.extract import Extracted, count_unreadable
from asterism.inputs import user_path
from asterism.nn.encoder import Encoder
from asterism.ops.knn import votes
from asterism.ops.neighbours import nearest
from asterism.ranges import AtLeastOne, Count, Positive, VoteTemperature

_ROWS = 4096  # scored at a time

Predict = Callable[[Float[Tensor, "m d"]], Int[Tensor, " m"]]


class BackgroundsConfig(PooledConfig, GridConfig):
    """Constants of the protocol; those of `GridConfig` apply to the linear classifier."""

    train_data: str | None = None  # labelled images of the nine classes or of ImageNet's 1,000
    classifier: Literal["linear", "knn"] = "linear"
    resize: AtLeastOne = 1.0  # shorter side before the centre crop, relative to the crop; 1: no margin
    learning_rates: tuple[Positive, ...] = (1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0)  # at batch 256
    head_batch: Count = 1024  # linear; images per step
    k: Count = 20  # knn
    temperature: VoteTemperature = 0.07  # knn


class Backgrounds(Evaluation):
    """Top-1 accuracy of every variation, in percent."""

    Config = BackgroundsConfig
    config: BackgroundsConfig

    @classmethod
    def open_parts(cls, config: ProtocolConfig, choice: DataChoice) -> Parts:
        assert isinstance(config, BackgroundsConfig)
        root = user_path(choice.path)
        if root.is_dir():
            test = open_imagenet9(root)
            return Parts(_training_images(config, choice, root), test)
        scenes = open_source(choice.path, choice.test_split or "test")
        if not isinstance(scenes, Scenes):
            raise UserError(f"{choice.path} has no background variations; name an ImageNet-9 folder, or scenes")
        train = open_source(config.train_data or choice.path, choice.train_split)
        return Parts(train, scene_variations(scenes))

    @classmethod
    def value_names(cls, config: ProtocolConfig) -> list[str]:
        return [*(f"top1_{name}" for name in VARIATIONS), "background_gap", "unreadable_images"]

    def measure(self, encoder: Encoder) -> Iterator[tuple[str, float]]:
        test = self.parts.test
        assert isinstance(test, Variations)
        labels_of(self.parts.train)
        to_tested = class_map(self.parts.train.classes or [], test.classes or [])
        train = pooled_vectors(self.config, encoder, self.parts.train)
        check_classes(self.parts.train, train.labels)
        predict = self._classifier(encoder, train, len(to_tested))
        accuracy, parts = {}, [train]
        for name, source in test.parts.items():
            found = pooled_vectors(self.config, encoder, source)
            parts.append(found)
            predicted = torch.cat([predict(rows) for rows in torch.split(found.features, _ROWS)])
            accuracy[name] = branch_accuracy(predicted, found.labels, to_tested)
        yield from ((f"top1_{name}", value) for name, value in accuracy.items())
        if {"mixed_same", "mixed_rand"} <= accuracy.keys():
            yield "background_gap", accuracy["mixed_same"] - accuracy["mixed_rand"]
        yield from count_unreadable(*parts)

    def baselines(self, encoder: Encoder) -> dict[str, Encoder]:
        return concept_baselines(encoder) if self.config.feature == "sparse" else super().baselines(encoder)

    def constants(self, encoder: Encoder) -> dict[str, Any]:
        settings = {
            "linear": {"learning_rates", "epochs", "head_batch", "chosen_on"},
            "knn": {"k", "temperature"},
        }
        unused = set.union(*(names for kind, names in settings.items() if kind != self.config.classifier)) | {"holdout"}
        known = {name: value for name, value in super().constants(encoder).items() if name not in unused}
        classes = len(self.parts.train.classes or [])
        return known | self.config.pixels(encoder) | {"classes_of_classifier": classes}

    def _classifier(self, encoder: Encoder, train: Extracted, classes: int) -> Predict:
        config = self.config
        if config.classifier == "knn":
            return partial(_by_votes, train, min(config.k, len(train.labels)), config.temperature, classes)
        device = next(encoder.parameters()).device
        batch = min(config.head_batch, len(train.labels))
        chosen = choose_classifier(
            train,
            [Setting(rate * batch / 256, batch) for rate in config.learning_rates],
            partial(linear_layer, train.features.shape[1], classes),
            partial(torch.optim.SGD, lr=0.0, momentum=0.9),
            config,
            classes=classes,
            device=device,
            title="backgrounds",
        )
        head = chosen.head.eval().requires_grad_(False)
        return lambda rows: head(rows.to(device).float()).argmax(1).cpu()


def class_map(trained: list[str], tested: list[str]) -> Int[Tensor, " c"]:
    """The test class that each class of the classifier corresponds to, or −1."""
    if len(trained) == len(tested):
        return torch.arange(len(trained))
    mapping = from_imagenet()
    if len(trained) == len(mapping):
        return mapping
    raise UserError(
        f"the classifier would have {len(trained)} classes, but the variations have {len(tested)}; give "
        f"backgrounds.train_data with these {len(tested)} classes, or ImageNet with its {len(mapping)}"
    )


def branch_accuracy(predicted: Int[Tensor, " n"], labels: Int[Tensor, " n"], to_tested: Int[Tensor, " c"]) -> float:
    """Percent of images whose predicted class maps to their own; a class that maps to none is wrong."""
    found = to_tested[predicted]
    return 100 * ((found == labels) & (found != NONE)).double().mean().item()


def _by_votes(
    train: Extracted, k: int, temperature: float, classes: int, rows: Float[Tensor, "m d"]
) -> Int[Tensor, " m"]:
    similarity, index = nearest(rows, train.features, k)
    return votes(similarity, train.labels[index], classes, temperature).argmax(1)


def _training_images(config: BackgroundsConfig, choice: DataChoice, root: Path) -> Source:
    if config.train_data is not None:
        return open_source(config.train_data, choice.train_split, labels=True)
    if not (root / "original" / "train").is_dir():
        raise UserError(
            f"{root} has no original/train to train a classifier on; name labelled images, for example "
            "backgrounds.train_data=imagenet"
        )
    return open_source(root / "original", "train", labels=True)
