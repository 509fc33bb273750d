"""What is kept of an image to compute COCO's average precision: a few bytes per detection, and no mask."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from asterism.extras.detection.coco_rules import MOST, OVERLAPS, Pairs
from asterism.extras.detection.objects import Detections, TrueObjects
from asterism.extras.detection.overlaps import box_overlaps, mask_overlaps
from asterism.extras.detection.sources.run_lengths import areas


@dataclass(frozen=True)
class Compared:
    """The detections and the objects of an image, or of several one after the other."""

    labels: Int[np.ndarray, " n"]
    scores: Float[np.ndarray, " n"]
    areas: Float[np.ndarray, " n"]
    object_labels: Int[np.ndarray, " m"]
    object_areas: Float[np.ndarray, " m"]
    crowd: Bool[np.ndarray, " m"]
    pairs: Pairs


Compare = Callable[[Detections, TrueObjects], Compared]


def compared_boxes(prediction: Detections, truth: TrueObjects) -> Compared:
    kept, ranks = _best(prediction)
    boxes = _doubles(prediction.boxes)[kept]
    overlaps = box_overlaps(boxes, _doubles(truth.boxes), truth.crowd.cpu().numpy())
    sizes = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    return _compared(prediction, truth, kept, ranks, sizes, overlaps)


def compared_masks(prediction: Detections, truth: TrueObjects) -> Compared:
    assert prediction.run_lengths is not None
    assert truth.run_lengths is not None
    kept, ranks = _best(prediction)
    masks = [prediction.run_lengths[place] for place in kept.tolist()]
    labels, object_labels = prediction.labels.cpu().numpy()[kept], truth.labels.cpu().numpy()
    overlaps = mask_overlaps(masks, labels, truth.run_lengths, object_labels, truth.crowd.cpu().numpy())
    return _compared(prediction, truth, kept, ranks, _doubles(areas(masks)), overlaps)


def joined(images: Sequence[Compared]) -> Compared:
    """Images one after the other."""
    pairs = [image.pairs for image in images]
    detections_before = accumulate((len(image.labels) for image in images), initial=0)
    objects_before = accumulate((len(image.object_labels) for image in images), initial=0)
    return Compared(
        labels=_concatenated(int, (image.labels for image in images)),
        scores=_concatenated(float, (image.scores for image in images)),
        areas=_concatenated(float, (image.areas for image in images)),
        object_labels=_concatenated(int, (image.object_labels for image in images)),
        object_areas=_concatenated(float, (image.object_areas for image in images)),
        crowd=_concatenated(bool, (image.crowd for image in images)),
        pairs=Pairs(
            detections=_concatenated(
                int, (each.detections + n for each, n in zip(pairs, detections_before, strict=False))
            ),
            objects=_concatenated(int, (each.objects + m for each, m in zip(pairs, objects_before, strict=False))),
            ranks=_concatenated(int, (each.ranks for each in pairs)),
            overlaps=_concatenated(float, (each.overlaps for each in pairs)),
        ),
    )


def _best(prediction: Detections) -> tuple[Int[np.ndarray, " n"], Int[np.ndarray, " n"]]:
    """The best detections of each class, and their ranks in it; of equal scores, the first is better."""
    labels = prediction.labels.cpu().numpy()
    order = np.lexsort((-_doubles(prediction.scores), labels))
    ranks = np.arange(len(order)) - np.searchsorted(labels[order], labels[order])
    return order[ranks < MOST], ranks[ranks < MOST]


def _compared(
    prediction: Detections,
    truth: TrueObjects,
    kept: Int[np.ndarray, " n"],
    ranks: Int[np.ndarray, " n"],
    sizes: Float[np.ndarray, " n"],
    overlaps: Float[np.ndarray, "n m"],
) -> Compared:
    labels, object_labels = prediction.labels.cpu().numpy()[kept], truth.labels.cpu().numpy()
    rows, columns = np.nonzero((labels[:, None] == object_labels) & (overlaps >= OVERLAPS[0]))
    return Compared(
        labels=labels,
        scores=_doubles(prediction.scores)[kept],
        areas=sizes,
        object_labels=object_labels,
        object_areas=_doubles(truth.areas),
        crowd=truth.crowd.cpu().numpy(),
        pairs=Pairs(rows, columns, ranks[rows], overlaps[rows, columns]),
    )


def _doubles(values: Float[Tensor, "*shape"]) -> Float[np.ndarray, "*shape"]:
    return values.detach().cpu().double().numpy()


def _concatenated(kind: type, parts: Iterable[Shaped[np.ndarray, " _"]]) -> Shaped[np.ndarray, " n"]:
    return np.concatenate([np.empty(0, dtype=kind), *parts])
