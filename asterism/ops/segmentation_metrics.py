"""Intersection over union and accuracies of segmentations, from counts accumulated over a whole set.

A mean over images or batches would weight small images and rare classes differently; only counts are added.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, Integer
from torch import Tensor


@dataclass(frozen=True)
class SegmentationScores:
    """Shares in [0, 1]; NaN where undefined."""

    iou: Float[Tensor, " c"]  # NaN for classes neither labelled nor predicted; 0 if predicted but never labelled
    accuracy: Float[Tensor, " c"]  # NaN for classes never labelled
    miou: float  # means over the defined entries
    macc: float
    aacc: float  # share of all labelled pixels that are correct


def confusion(
    predicted: Integer[Tensor, "*shape"], labels: Integer[Tensor, "*shape"], classes: int, void: int
) -> Int[Tensor, "{classes} {classes}"]:
    """Pixels by label (rows) and prediction (columns); pixels labelled `void` are left out."""
    rows = torch.where(labels == void, classes, labels.long())  # an extra row for void, dropped below
    pairs = rows * classes + predicted
    return torch.bincount(pairs.flatten(), minlength=(classes + 1) * classes).view(-1, classes)[:classes]


def iou_by_class(found: SegmentationScores, names: Sequence[str]) -> dict[str, float]:
    """IoU in percent by class name, for every labelled class: the names do not depend on the predictions."""
    labelled = (~found.accuracy.isnan()).tolist()
    return {name: 100 * value for name, value, here in zip(names, found.iou.tolist(), labelled, strict=True) if here}


def scores(counts: Int[Tensor, "c c"]) -> SegmentationScores:
    """The usual scores, from the counts of `confusion` summed over all images."""
    table = counts.double()
    right, labelled, predicted = table.diagonal(), table.sum(1), table.sum(0)
    iou, accuracy = right / (labelled + predicted - right), right / labelled
    return SegmentationScores(
        iou=iou,
        accuracy=accuracy,
        miou=float(iou.nanmean()),
        macc=float(accuracy.nanmean()),
        aacc=float(right.sum() / labelled.sum()),
    )
