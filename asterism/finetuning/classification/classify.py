"""Classification: one label per image. Fine-tuning with timm's recipe, low-shot fine-tuning and transfer.

Augmentation, mixing and erasing are timm's (`asterism.finetuning.classification.timm_images`). Heads, in
`asterism.finetuning.classification.heads`:

    linear       one linear layer on the pooled tokens
    first-layer  the first layer of the pretrained projection head, then a linear layer, for few labels

The task `probe` trains linear layers on the frozen network instead.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import torch
from jaxtyping import Float, UInt8
from pydantic import SerializeAsAny, field_validator
from torch import Tensor, nn
from torch.nn import functional as F

from asterism.csv_text import comma_separated
from asterism.data import Sample, Source, open_source
from asterism.data.loader import Make
from asterism.data.parts import labels_of
from asterism.data.sources.derived import Relabelled
from asterism.errors import UserError
from asterism.files import write_text
from asterism.finetuning.classification.heads import (
    HEADS,
    ClassifyHead,
    ClassifyHeadConfig,
    FirstLayerHeadConfig,
    LinearHeadConfig,
    first_layer_width,
    pooled,
)
from asterism.finetuning.classification.timm_images import AugmentationConfig, MixingConfig, TimmImages, mixed
from asterism.finetuning.task import (
    LinearClassifier,
    Metric,
    Prediction,
    PredictionWriter,
    Start,
    Task,
    TaskBatch,
    TaskConfig,
    Truth,
    check_classes,
    chosen_head,
)
from asterism.images.centre_crop import center_square, usual_resize
from asterism.ops import collectives
from asterism.ranges import ShareBelowOne
from asterism.types import Losses, Progress
from asterism.viz import page
from asterism.viz.page import Section
from asterism.viz.pictures import captioned

_SMALL, _BASE = 384, 768  # channels of ViT-S and ViT-B


class ClassifyConfig(TaskConfig):
    """Settings of the task; the defaults are those of timm's recipe, as BEiT, MAE and iBOT use it."""

    name: Literal["classify"] = "classify"
    head: SerializeAsAny[ClassifyHeadConfig] = LinearHeadConfig()
    augmentation: AugmentationConfig = AugmentationConfig()
    mixing: MixingConfig | None = MixingConfig()  # None: images are not mixed
    label_smoothing: ShareBelowOne = 0.1
    start: Literal["probe", "fresh"] = "probe"  # of the classifier: a probe of the frozen network, or random weights

    @field_validator("head", mode="before")
    @classmethod
    def _choose_head(cls, value: Any) -> Any:
        return chosen_head(value, HEADS)

    @property
    def takes_projection(self) -> bool:
        return isinstance(self.head, FirstLayerHeadConfig)

    def resolved(self, projection: Callable[[], Mapping[str, Tensor]]) -> ClassifyConfig:
        if not isinstance(self.head, FirstLayerHeadConfig) or self.head.hidden is not None:
            return self
        head = self.head.model_copy(update={"hidden": first_layer_width(projection())})
        return self.model_copy(update={"head": head})

    def check_micro_batch(self, images: int) -> None:
        if self.mixing is not None and images % 2:
            raise UserError(
                f"each process gets {images} images at a time, but pairs of images are mixed; choose a "
                "trainer.batch_size that gives an even number, or task.mixing=null"
            )

    def usual_epochs(self, dim: int) -> float:
        """As published: 200 for ViT-S, 100 for ViT-B, 50 for ViT-L."""
        return 200 if dim <= _SMALL else 100 if dim <= _BASE else 50

    def usual_layer_decay(self, dim: int) -> float:
        """As published: 0.75 for ViT-S, 0.65 for ViT-B, 0.75 for ViT-L."""
        return 0.65 if _SMALL < dim <= _BASE else 0.75


@dataclass(frozen=True)
class Classes(Prediction):
    """The probability of each class."""

    scores: Float[Tensor, " c"]
    names: tuple[str, ...]

    @property
    def index(self) -> int:
        return int(self.scores.argmax())

    @property
    def label(self) -> str:
        """The most probable class."""
        return self.names[self.index]

    @property
    def score(self) -> float:
        return float(self.scores.max())

    def top(self, count: int = 5) -> list[tuple[str, float]]:
        """The most probable classes and their probabilities."""
        found = self.scores.topk(min(count, len(self.names)))
        return [(self.names[place], score) for score, place in zip(*map(Tensor.tolist, found), strict=True)]


@dataclass(frozen=True)
class Label(Truth):
    """The class of an image."""

    index: int
    name: str


class Classify(Task):
    """A network with a classifier."""

    Config = ClassifyConfig
    primary = "top1"
    purpose = "image-classification"
    meanings = MappingProxyType({"scores": "the probability of each class [batch, classes]"})
    config: ClassifyConfig

    def __init__(self, config: ClassifyConfig, start: Start) -> None:
        super().__init__(config, start)
        self.head = ClassifyHead(config.head, start.backbone, len(start.classes), start.projection)

    @classmethod
    def open(cls, config: TaskConfig, path: str, split: str | None) -> Source:
        source = open_source(path, split)
        check_classes(source, source.classes or (), labels_of(source))
        return source

    @classmethod
    def open_test(cls, config: TaskConfig, path: str, split: str | None) -> Source:
        """Unlike training images, those to test on may lack some classes."""
        from asterism.data.sources.splits import UnknownSplit

        try:
            source = open_source(path, split or "test")
        except UnknownSplit:
            if split is not None:
                raise
            source = open_source(path)
        labels_of(source)
        return source

    def labelled_like_training(self, source: Source) -> Source:
        names = source.classes or []
        if tuple(names) == self.classes:
            return source
        strange = [name for name in names if name not in self.classes]
        if strange:
            raise UserError(
                f"{source.name} has the class {strange[0]!r}, which the model was not trained on; its classes are "
                f"{', '.join(self.classes[:10])}{' …' if len(self.classes) > 10 else ''}"
            )
        return Relabelled(source, list(self.classes), [self.classes.index(name) for name in names])

    def samples(self) -> Make[TaskBatch]:
        return TimmImages(self.config.augmentation, self.image_size, self.mean, self.std)

    def loss(self, batch: TaskBatch, progress: Progress) -> Losses:
        assert isinstance(batch.images, Tensor)
        config = self.config
        (labels,) = batch.truths
        images, targets = mixed(
            batch.images, labels, batch.keys, config.mixing, config.label_smoothing, len(self.classes)
        )
        tokens = self.backbone(images, drop_keys=batch.keys)
        logits = self.head(pooled(tokens, self.backbone, config.head.pooling)).float()
        return Losses({"cross_entropy": F.cross_entropy(logits, targets)})

    def predict(self, images: Sequence[UInt8[Tensor, "3 _ _"]]) -> list[Classes]:
        scores = self.named_outputs(self._pixels(images))["scores"].float().cpu()
        return [Classes(row, self.classes) for row in scores]

    def _pixels(self, images: Sequence[UInt8[Tensor, "3 _ _"]]) -> Float[Tensor, "b 3 s s"]:
        resize = usual_resize(self.image_size)
        return self.normalise(torch.stack([center_square(image, self.image_size, resize) for image in images]))

    @property
    def preprocessing(self) -> str:
        side = usual_resize(self.image_size)
        return f"shorter side to {side} (bicubic, antialiased), then the centre square of {self.image_size}"

    def named_outputs(self, pixels: Float[Tensor, "b 3 h w"]) -> dict[str, Tensor]:
        tokens = self.backbone(pixels)
        logits = self.head(pooled(tokens, self.backbone, self.config.head.pooling))
        scores = logits.float().softmax(dim=1)
        return {"cls": self.backbone.pool(tokens), "patches": tokens.patches, "scores": scores}

    def probed_layer(self) -> nn.Linear | nn.Conv2d | None:
        return self.head.classifier if self.config.start == "probe" else None

    def probe_rows(self, samples: Sequence[Sample]) -> Iterator[tuple[Float[Tensor, "n d"], Float[Tensor, "n c"]]]:
        tokens = self.backbone(self._pixels([sample.image for sample in samples]))
        inputs = self.head.inputs(pooled(tokens, self.backbone, self.config.head.pooling))
        for row, sample in zip(inputs, samples, strict=True):
            assert sample.label is not None
            yield row[None], F.one_hot(torch.tensor([sample.label], device=row.device), len(self.classes)).float()

    def chosen_probe(
        self, logits: Float[Tensor, "r m c"], targets: Float[Tensor, "m c"]
    ) -> tuple[int, Float[Tensor, " c"]]:
        """By accuracy; of equals the one with the larger penalty, which comes first."""
        known = targets.argmax(dim=1)
        right = [int((each.argmax(dim=1) == known).sum()) for each in logits]
        return right.index(max(right)), targets.new_zeros(targets.shape[1])

    def doubt(self, score: float, images: int) -> float:
        """The standard error of an accuracy."""
        return 100 * math.sqrt(score / 100 * (1 - score / 100) / images)

    def linear_classifier(self) -> LinearClassifier | None:
        head = self.config.head
        if not isinstance(head, LinearHeadConfig) or head.norm or head.pooling not in ("auto", "mean"):
            return None
        layer = self.head.classifier
        return LinearClassifier(layer.weight, layer.bias, head.pooling == "mean", self.classes)

    def report(self, pairs: Sequence[tuple[Classes, Label]]) -> list[Section]:
        return [confusion_section(self.classes, [(truth.index, found.index) for found, truth in pairs])]

    def truth(self, sample: Sample) -> Label:
        assert sample.label is not None
        return Label(sample.label, self.classes[sample.label])

    def metric(self) -> Metric:
        return Accuracy(len(self.classes))

    def drawing(self, image: UInt8[Tensor, "3 h w"], prediction: Classes | Label) -> UInt8[Tensor, "3 _ _"]:
        if isinstance(prediction, Label):
            return captioned(image, prediction.name)
        return captioned(image, f"{prediction.label} {prediction.score:.0%}")

    def writer(self, folder: Path) -> PredictionWriter:
        return ClassTable(folder)

    def error(self, prediction: Classes, truth: Label) -> float:
        """The probability that the prediction withholds from the true class."""
        return 1 - float(prediction.scores[truth.index])


class Accuracy:
    """Top-1, top-5 (with more than five classes) and the mean of the classes' accuracies, in percent."""

    def __init__(self, classes: int) -> None:
        self._right = torch.zeros(classes, dtype=torch.int64)
        self._five = torch.zeros((), dtype=torch.int64)
        self._total = torch.zeros(classes, dtype=torch.int64)

    def update(self, predictions: Sequence[Classes], truths: Sequence[Label]) -> None:
        for prediction, truth in zip(predictions, truths, strict=True):
            best = prediction.scores.topk(min(5, len(self._total))).indices.tolist()
            self._right[truth.index] += best[0] == truth.index
            self._five += truth.index in best
            self._total[truth.index] += 1

    def gathered(self) -> dict[str, float]:
        sums = collectives.all_reduce_sum(torch.cat([self._right, self._total, self._five[None]])).double()
        classes = len(self._total)
        right, total, five = sums[:classes], sums[classes:-1], sums[-1]
        seen = total > 0
        values = {"top1": right.sum() / total.sum(), "mean_per_class": (right[seen] / total[seen]).mean()}
        if classes > 5:
            values["top5"] = five / total.sum()
        return {name: 100 * float(value) for name, value in values.items()}


_SHOWN = 5  # classes with the highest scores


class ClassTable:
    """Collects the most probable classes of each image, for `predictions.csv` and `predictions.json`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._rows: list[dict[str, Any]] = []

    def add(self, key: str, image: UInt8[Tensor, "3 h w"], prediction: Classes) -> None:
        best = [{"label": name, "score": round(score, 6)} for name, score in prediction.top(_SHOWN)]
        self._rows.append({"image": key, **best[0], "best": best})

    def close(self) -> list[Path]:
        rows = [[row["image"], row["label"], row["score"]] for row in self._rows]
        written = {
            "predictions.csv": comma_separated([["image", "label", "score"], *rows]),
            "predictions.json": json.dumps(self._rows, indent=2, ensure_ascii=False) + "\n",
        }
        for name, content in written.items():
            write_text(self._folder / name, content)
        return [self._folder / name for name in written]


_MOST = 20  # classes of a matrix
_PAIRS = 20  # confusions that are listed


def confusion_section(classes: Sequence[str], pairs: Sequence[tuple[int, int]]) -> Section:
    """Which classes are mistaken for which: a matrix for few classes, the most frequent confusions for many.

    pairs: true and predicted class of every image.
    """
    counts = Counter(pairs)
    if len(classes) <= _MOST:
        header = ["true \\ predicted", *classes]
        rows = [
            [name, *(str(counts.get((true, found), 0) or "") for found in range(len(classes)))]
            for true, name in enumerate(classes)
        ]
        best = [{place + 1} for place in range(len(classes))]
        return Section(
            "Confusion", page.table(header, rows, best), "Images of each class, by the class they are given."
        )
    wrong = [(pair, count) for pair, count in counts.most_common() if pair[0] != pair[1]][:_PAIRS]
    rows = [[classes[true], classes[found], str(count)] for (true, found), count in wrong]
    body = page.table(["true", "predicted", "images"], rows) if rows else page.note("No image was given a wrong class.")
    return Section("Confusion", body, "The classes that are mistaken for each other most often.")
