"""Segmentation by nearest neighbours of patch tokens: whether patches of one class are close, without any training.

The protocol of CrIBo after Hummingbird: images are resized to the nearest multiple of the patch size. Every patch of a
training image gets the majority label of its non-void pixels. Each patch of a test image is classified by a vote of its
50 most similar training patches, weighted with exp(cosine / T). Smaller shares of the training images (1/8, 1/64,
1/128) are drawn five times and averaged. Scored on patches and, after bilinear upsampling of the votes, on pixels.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from asterism.data.parts import SegmentedParts, drawn_images, open_segmented_parts
from asterism.data.sources.segmented import NearestMultiple
from asterism.errors import UserError
from asterism.evals.base import Evaluation, ProtocolConfig
from asterism.evals.baselines import patch_baselines
from asterism.features.dense_tokens import (
    PatchLabels,
    labelled_tokens,
    mask_of,
    pixels_from_patches,
    sizes_of,
    tokens_and_masks,
)
from asterism.features.extract import count_unreadable
from asterism.features.rows import Stored
from asterism.images.masks import VOID
from asterism.nn.encoder import Encoder
from asterism.ops.knn import votes
from asterism.ops.neighbours import nearest_in_parts
from asterism.ops.patch_labels import mean_of_neighbours
from asterism.ops.random import fold
from asterism.ops.segmentation_metrics import SegmentationScores, confusion, iou_by_class, scores
from asterism.ranges import Count, Few, LongerSide, PositiveShare, Several, VoteTemperature
from asterism.viz.bar import Bar

_QUERIES = 8192  # patches queried at a time, whose neighbours are all in memory


class DenseNnConfig(ProtocolConfig):
    """Constants of the protocol; the defaults are those of the papers."""

    k: Count = 50  # patches that vote
    temperature: VoteTemperature = 0.02  # of the votes; below 0.02 single precision overflows
    shares: Several[PositiveShare] = (1.0, 1 / 8, 1 / 64, 1 / 128)  # of the training images
    draws: Few = 5  # of each share below 1; their mean is reported
    patch_labels: PatchLabels = "majority"  # mode: void counts as a label; soft: shares of classes, void as class 0
    longer_side: LongerSide | None = None  # pixels of the images; None: as they are
    batch_size: Count = 8  # images encoded at a time; does not change the result


class DenseNn(Evaluation):
    """Mean intersection over union in percent, on patches and on pixels, for every share of the training images; and
    the IoU on pixels of every class in the test images, using all training images."""

    Config = DenseNnConfig
    config: DenseNnConfig
    parts: SegmentedParts
    opened = staticmethod(open_segmented_parts)

    @classmethod
    def value_names(cls, config: ProtocolConfig) -> list[str]:
        assert isinstance(config, DenseNnConfig)
        found = [f"miou_{kind}{_suffix(share)}" for share in config.shares for kind in ("patches", "pixels")]
        return [*found, "unreadable_images"]

    def measure(self, encoder: Encoder) -> Iterator[tuple[str, float]]:
        config = self.config
        resize = NearestMultiple(encoder.patch_size, config.longer_side)
        common: dict[str, Any] = {"layers": 1, "batch_size": config.batch_size, "workers": config.workers}
        train = labelled_tokens(encoder, self.parts.train, resize, patch_labels=config.patch_labels, **common)
        test = tokens_and_masks(encoder, self.parts.test, resize, unit=True, **common)
        if not len(train.arrays["tokens"]):
            raise UserError(f"every patch of {self.parts.train.name} is void; there is nothing to learn from")
        plans = [(share, draw) for share in config.shares for draw in range(config.draws if share < 1 else 1)]
        parts = [_runs(train, self._drawn(len(train.keys), share, draw)) for share, draw in plans]
        found: dict[str, list[float]] = {}
        by_class: dict[str, float] = {}
        for (share, _), kinds in zip(plans, self._scores(train, parts, test, _device(encoder)), strict=True):
            for kind, scored in kinds.items():
                found.setdefault(f"miou_{kind}{_suffix(share)}", []).append(100 * scored.miou)
            if share == 1:
                by_class = iou_by_class(kinds["pixels"], self.parts.classes)
        yield from ((name, sum(values) / len(values)) for name, values in found.items())
        yield from ((f"iou/{name}", value) for name, value in by_class.items())
        yield from count_unreadable(train, test)

    def baselines(self, encoder: Encoder) -> dict[str, Encoder]:
        return patch_baselines(encoder)

    def constants(self, encoder: Encoder) -> dict[str, Any]:
        return super().constants(encoder) | {
            "multiple": encoder.patch_size,
            "classes": len(self.parts.classes),
            "images_per_share": [_count(len(self.parts.train), share) for share in self.config.shares],
        }

    def _drawn(self, images: int, share: float, draw: int) -> list[int]:
        count = _count(images, share)
        return list(range(images)) if share == 1 else drawn_images(images, count, fold(self.config.seed, count, draw))

    def _scores(
        self, train: Stored, parts: list[list[range]], test: Stored, device: torch.device
    ) -> list[dict[str, SegmentationScores]]:
        """For every part of the training tokens, the scores on patches and on pixels.

        A group of test images is compared with all parts in one call, which shares similarities among them.
        """
        classes = len(self.parts.classes)
        memory, labels = (train.arrays[name].to(device) for name in ("tokens", "labels"))
        patches, pixels = (torch.zeros(len(parts), classes, classes, dtype=torch.int64) for _ in range(2))
        with Bar("dense-nn", len(test.keys)) as bar:
            for group in _groups(test):
                queries = torch.cat([test.of("tokens", image) for image in group]).to(device)
                for part, (similarity, rows) in enumerate(nearest_in_parts(queries, memory, parts, self.config.k)):
                    ballots = self._votes(similarity, labels[rows], classes).cpu()
                    by_image = torch.split(ballots, [len(test.of("labels", image)) for image in group])
                    for image, ballot in zip(group, by_image, strict=True):
                        patches[part] += confusion(ballot.argmax(1), test.of("labels", image), classes, VOID)
                        predicted = pixels_from_patches(ballot, *sizes_of(test, image))
                        pixels[part] += confusion(predicted, mask_of(test, image), classes, VOID)
                bar.advance(len(group))
        if not pixels.sum():
            raise UserError(f"every pixel of {self.parts.test.name} is void; there is nothing to test on")
        counted = {"patches": patches, "pixels": pixels} if patches.sum() else {"pixels": pixels}
        return [{kind: scores(counts[part]) for kind, counts in counted.items()} for part in range(len(parts))]

    def _votes(self, similarity: Float[Tensor, "q k"], labels: Tensor, classes: int) -> Float[Tensor, "q c"]:
        """Shares of the classes, from the labels [q, k] or [q, k, c] of the neighbours."""
        if self.config.patch_labels == "soft":
            return mean_of_neighbours(similarity, labels.float(), self.config.temperature)
        ballot = votes(similarity - similarity[:, :1], labels.long(), classes, self.config.temperature)
        return ballot / ballot.sum(1, keepdim=True)


def _runs(train: Stored, images: list[int]) -> list[range]:
    """Rows of the labelled tokens of some images; those of the first labelled image if these have none."""
    kept = [image for image in images if len(train.of("labels", image))] or _labelled(train)[:1]
    first = train.first["labels"].tolist()
    runs: list[range] = []
    for image in kept:
        joined = bool(runs) and runs[-1].stop == first[image]
        start = runs.pop().start if joined else first[image]
        runs.append(range(start, first[image + 1]))
    return runs


def _labelled(train: Stored) -> list[int]:
    return [image for image in range(len(train.keys)) if len(train.of("labels", image))]


def _groups(test: Stored) -> Iterator[list[int]]:
    """Consecutive images with about `_QUERIES` patches in total."""
    group: list[int] = []
    total = 0
    for image in range(len(test.keys)):
        group.append(image)
        total += len(test.of("labels", image))
        if total >= _QUERIES:
            yield group
            group, total = [], 0
    if group:
        yield group


def _device(encoder: Encoder) -> torch.device:
    return next(encoder.parameters()).device


def _count(images: int, share: float) -> int:
    return max(1, round(share * images))


def _suffix(share: float) -> str:
    """Empty for the whole set, `_1of8` for an eighth."""
    fraction = Fraction(share).limit_denominator(10_000)
    return "" if share == 1 else f"_{fraction.numerator}of{fraction.denominator}"
