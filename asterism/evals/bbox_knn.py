"""Nearest neighbours of patch tokens inside objects' boxes: whether patches know the class of the thing they show.

The protocol of FLSL (appendix F): images are resized and centre-cropped as for k-NN; of the largest box of the image's
class, the patches under the centres of 3×3 equal parts stand for the object. Each of these points is classified by the
vote of the 20 · 7 = 140 most similar points of training images, with exp(cosine / 0.07). An image is right if one of
its nine points is. Needs boxes: a folder with boxes.json, or scenes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field, field_validator
from torch import Tensor

from asterism.data import Source
from asterism.data.boxes import BoxedBatch, boxed_batches, with_boxes
from asterism.data.workers import cores
from asterism.errors import UserError
from asterism.evals.base import Evaluation, ProtocolConfig
from asterism.evals.parts import DataChoice, Parts, open_labelled
from asterism.nn.encoder import Encoder
from asterism.ops.box_cells import boxes_in_square, boxes_in_squashed_square, largest_box_cells
from asterism.ops.mean_shift import take
from asterism.ops.neighbours import clip_neighbours, nearest, votes

_TOP = 5
_WORTH_HELPERS = 2000  # images


class BboxKnnConfig(ProtocolConfig):
    """Constants of the protocol; the defaults are those of the paper."""

    k: tuple[int, ...] = (140,)  # points that vote; every value is reported
    temperature: float = Field(0.07, ge=0.02)  # of the votes; below 0.02 single precision overflows
    points: int = Field(3, ge=1)  # per side of the box
    resize: float = Field(256 / 224, ge=1)  # shorter side before the centre crop, in crops
    geometry: Literal["true", "squashed"] = "true"  # squashed: as published, which forgets that crops keep proportions

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


class BboxKnn(Evaluation):
    """Top-1 and top-5 accuracy for every k, in percent of the images with a visible box."""

    Config = BboxKnnConfig
    config: BboxKnnConfig

    @classmethod
    def open_parts(cls, config: ProtocolConfig, choice: DataChoice) -> Parts:
        parts = open_labelled(choice, config.holdout, config.seed)
        return Parts(with_boxes(parts.train, choice.path), with_boxes(parts.test, choice.path), parts.notes)

    def measure(self, encoder: Encoder) -> Iterator[tuple[str, float]]:
        bank, queries = (_Points(encoder, part, self.config) for part in (self.parts.train, self.parts.test))
        accuracy, _ = point_accuracy(
            bank.features, bank.labels, queries.features, queries.labels, self.config.k, self.config.temperature
        )
        yield from accuracy.items()
        counts = {
            "images_without_visible_box": bank.without_box + queries.without_box,
            "unreadable_images": bank.unreadable + queries.unreadable,
        }
        yield from ((name, float(count)) for name, count in counts.items() if count)

    def constants(self, encoder: Encoder) -> dict[str, Any]:
        return super().constants(encoder) | {
            "resize": round(self.config.resize * encoder.image_size),
            "crop": encoder.image_size,
            "training_images": len(self.parts.train),
        }

    def notes(self) -> list[str]:
        points, classes = self.config.points**2, len(self.parts.train.classes or ())
        chance = 1 - (1 - 1 / max(1, classes)) ** points
        lenient = f"one right point of {points} is enough: guessing among {classes} classes would reach {chance:.0%}"
        most = len(self.parts.train) * points
        too_many = [str(k) for k in self.config.k if k > most]
        clipped = f"k = {', '.join(too_many)} became {most} or less, the number of points of training images"
        return [*super().notes(), lenient] + ([clipped] if too_many else [])


def point_accuracy(
    train: Float[Tensor, "n p d"],
    train_labels: Int[Tensor, " n"],
    test: Float[Tensor, "q p d"],
    test_labels: Int[Tensor, " q"],
    ks: tuple[int, ...],
    temperature: float,
) -> tuple[dict[str, float], dict[int, Int[Tensor, "q p"]]]:
    """Accuracies in percent for every k, and the class that each point got.

    Every point of a test image asks all points of all training images. The image is right if any of its points has the
    right class in first place; for top-5 (reported above five classes), among the first five.
    """
    points = test.shape[1]
    classes = 1 + int(torch.cat([train_labels, test_labels]).max())
    allowed = clip_neighbours(ks, train.shape[0] * train.shape[1])
    similarity, index = nearest(test.flatten(0, 1), train.flatten(0, 1), allowed[-1])
    labels, asked = train_labels.repeat_interleave(train.shape[1])[index], test_labels.repeat_interleave(points)
    accuracy, predictions = {}, {}
    for k in allowed:
        share, ranking = votes(similarity[:, :k], labels[:, :k], classes, temperature).topk(min(_TOP, classes))
        right = ((ranking == asked[:, None]) & (share > 0)).view(len(test), points, -1)
        accuracy[f"top1_k{k}"] = 100 * right[..., 0].any(dim=1).double().mean().item()
        if classes > _TOP:
            accuracy[f"top5_k{k}"] = 100 * right.flatten(1).any(dim=1).double().mean().item()
        predictions[k] = ranking[:, 0].view(-1, points)
    return accuracy, predictions


class _Points:
    """Tokens inside the objects of a source, on the CPU."""

    features: Float[Tensor, "n p d"]
    labels: Int[Tensor, " n"]

    def __init__(self, encoder: Encoder, source: Source, config: BboxKnnConfig) -> None:
        crop, resize = encoder.image_size, round(config.resize * encoder.image_size)
        helpers = cores() // 2 if len(source) > _WORTH_HELPERS else 0
        workers = helpers if config.workers == "auto" else config.workers
        features, labels = [], []
        self.without_box = self.unreadable = 0
        for batch in boxed_batches(source, crop, resize=resize, batch_size=config.batch_size, workers=workers):
            self.unreadable += len(batch.bad)
            self.without_box += batch.without_box
            if not len(batch.labels):
                continue
            encoded = encoder.encode(batch.images)
            cells, seen = _cells(batch, resize, crop, encoded.grid[0], config)
            self.without_box += int((~seen).sum())
            features.append(take(encoded.patches.float().cpu()[seen], cells[seen]))
            labels.append(batch.labels[seen])
        if not any(len(part) for part in labels):
            raise UserError(
                f"none of the {len(source)} images of {source.name} shows a box of its class; put a boxes.json beside "
                "them ({path of the image: [x0, y0, x1, y1]}), or use data with boxes such as scenes"
            )
        self.features, self.labels = torch.cat(features), torch.cat(labels)


def _cells(
    batch: BoxedBatch, resize: int, crop: int, grid: int, config: BboxKnnConfig
) -> tuple[Int[Tensor, "b p"], Bool[Tensor, " b"]]:
    """Patches of each image's box, and whether the crop shows it."""
    place = boxes_in_square if config.geometry == "true" else boxes_in_squashed_square
    found = [
        largest_box_cells(place(boxes, size, resize, crop), crop, grid, config.points)
        for boxes, size in zip(batch.boxes, batch.sizes, strict=True)
    ]
    return torch.stack([cells for cells, _, _ in found]), torch.tensor([seen for _, _, seen in found])
