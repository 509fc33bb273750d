"""Nearest neighbours of patch tokens inside bounding boxes: whether patches encode the class of the object they show.

The protocol of FLSL (appendix F): images are resized and centre-cropped as for k-NN. The largest box of the image's
class is divided into 3×3 equal parts, and the patches under their centres represent the object. Each of these points is
classified by a vote of the 20 · 7 = 140 most similar points of training images, weighted with exp(cosine / 0.07). An
image counts as correct if one of its nine points is. Needs boxes: a folder with boxes.json, or scenes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from asterism.data import Source
from asterism.data.parts import DataChoice, Parts, open_labelled
from asterism.data.sources.boxes import BoxedBatch, BoxedSquares, with_boxes
from asterism.errors import UserError
from asterism.evals.base import Evaluation, ProtocolConfig
from asterism.evals.baselines import patch_baselines
from asterism.evals.settings import CroppedConfig, VotingConfig
from asterism.features.extract import count_unreadable, image_rows
from asterism.features.rows import Stored
from asterism.nn.encoder import Encoder
from asterism.ops.box_cells import boxes_in_square, boxes_in_squashed_square, largest_box_cells
from asterism.ops.knn import clip_neighbours, votes
from asterism.ops.neighbours import nearest
from asterism.ranges import Count, Few, Several
from asterism.viz.bar import Bar

_TOP = 5


class BboxKnnConfig(CroppedConfig, VotingConfig):
    """Constants of the protocol; the defaults are those of the paper."""

    k: Several[Count] = (140,)  # points that vote; every value is reported
    points: Few = 3  # per side of the box
    geometry: Literal["true", "squashed"] = (
        "true"  # squashed: as published, which ignores that crops keep the aspect ratio
    )


class BboxKnn(Evaluation):
    """Top-1 and top-5 accuracy for every k, in percent of the images with a visible box."""

    Config = BboxKnnConfig
    config: BboxKnnConfig

    @classmethod
    def open_parts(cls, config: ProtocolConfig, choice: DataChoice) -> Parts:
        parts = open_labelled(choice, config.holdout, config.seed)
        return Parts(with_boxes(parts.train, choice.path), with_boxes(parts.test, choice.path), parts.notes)

    @classmethod
    def value_names(cls, config: ProtocolConfig) -> list[str]:
        assert isinstance(config, BboxKnnConfig)
        return [
            *(f"top{top}_k{k}" for k in config.k for top in (1, 5)),
            "images_without_visible_box",
            "unreadable_images",
        ]

    def measure(self, encoder: Encoder) -> Iterator[tuple[str, float]]:
        bank, queries = (self._points(encoder, part) for part in (self.parts.train, self.parts.test))
        accuracy, _ = point_accuracy(*bank.seen, *queries.seen, self.config.k, self.config.temperature)
        yield from accuracy.items()
        if hidden := bank.without_box + queries.without_box:
            yield "images_without_visible_box", float(hidden)
        yield from count_unreadable(bank.found, queries.found)

    def baselines(self, encoder: Encoder) -> dict[str, Encoder]:
        return patch_baselines(encoder)

    def constants(self, encoder: Encoder) -> dict[str, Any]:
        return super().constants(encoder) | self.config.pixels(encoder) | {"training_images": len(self.parts.train)}

    def notes(self) -> list[str]:
        points, classes = self.config.points**2, len(self.parts.train.classes or ())
        chance = 1 - (1 - 1 / max(1, classes)) ** points
        lenient = f"one correct point of {points} is enough: guessing among {classes} classes would reach {chance:.0%}"
        most = len(self.parts.train) * points
        became = f"{most} or less, the number of points in training images"
        return [*super().notes(), lenient, *self.config.clipped(most, became)]

    def _points(self, encoder: Encoder, source: Source) -> _Points:
        """Tokens at the points of each image's box; none if the box is outside the crop."""
        config, sides = self.config, self.config.pixels(encoder)

        places = {"points": config.points, "geometry": config.geometry}
        stored = image_rows(
            encoder,
            source,
            BoxedSquares(sides["crop"], sides["resize"]),
            lambda batch: {"points": list(_tokens(encoder, batch, config))},
            {"layer": "points in boxes", "transform": {**sides, **places}},
            batch_size=config.batch_size,
            workers=config.workers,
        )
        found = _Points(stored, config.points**2)
        if found.without_box == len(found.found.keys):
            raise UserError(
                f"none of the {len(source)} images of {source.name} shows a box of its class; put a boxes.json next to "
                "them ({path of the image: [x0, y0, x1, y1]}), or use data with boxes such as scenes"
            )
        return found


def point_accuracy(
    train: Float[Tensor, "n p d"],
    train_labels: Int[Tensor, " n"],
    test: Float[Tensor, "q p d"],
    test_labels: Int[Tensor, " q"],
    ks: tuple[int, ...],
    temperature: float,
) -> tuple[dict[str, float], dict[int, Int[Tensor, "q p"]]]:
    """Accuracies in percent for every k, and the predicted class of each point.

    Every point of a test image is compared with all points of all training images. The image is correct if any of its
    points ranks the correct class first; for top-5 (reported for more than five classes), among the first five.
    """
    points = test.shape[1]
    classes = 1 + int(torch.cat([train_labels, test_labels]).max())
    allowed = clip_neighbours(ks, train.shape[0] * train.shape[1])
    bank = train.flatten(0, 1)
    with Bar("bbox-knn", len(bank)) as bar:
        similarity, index = nearest(test.flatten(0, 1), bank, allowed[-1], bar.advance)
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
    """Tokens inside the boxes of a source."""

    def __init__(self, found: Stored, points: int) -> None:
        self.found = found
        self._points = points
        self._rows = found.first["points"].diff() if "points" in found.first else torch.zeros(0, dtype=torch.int64)

    @property
    def without_box(self) -> int:
        return int((self._rows == 0).sum())

    @property
    def seen(self) -> tuple[Float[Tensor, "n p d"], Int[Tensor, " n"]]:
        """Tokens and labels of the images with a visible box."""
        tokens = self.found.arrays["points"]
        assert self.found.labels is not None
        return tokens.view(-1, self._points, tokens.shape[1]), self.found.labels[self._rows > 0]


def _tokens(encoder: Encoder, batch: BoxedBatch, config: BboxKnnConfig) -> Iterator[Float[Tensor, "_ d"]]:
    encoded = encoder.encode(batch.images)
    for patches, boxes, size in zip(encoded.patches.float().cpu(), batch.boxes, batch.sizes, strict=True):
        cells = _cells(boxes, size, config.pixels(encoder), encoded.grid[0], config)
        yield patches[cells]


def _cells(
    boxes: Float[Tensor, "m 4"], size: tuple[int, int], sides: dict[str, int], grid: int, config: BboxKnnConfig
) -> Int[Tensor, " p"]:
    """The patches of an image's largest box; none if the box is outside the crop."""
    place = boxes_in_square if config.geometry == "true" else boxes_in_squashed_square
    if len(boxes):
        inside = place(boxes, size, sides["resize"], sides["crop"])
        cells, _, seen = largest_box_cells(inside, sides["crop"], grid, config.points)
        if seen:
            return cells
    return torch.empty(0, dtype=torch.int64)
