"""COCO's average precision while predictions stream by.

Masks and boxes of an image are compared as soon as it is predicted. What is kept of it is what COCO's rules need: for
each detection its score and area, and how much it overlaps the few objects that it may have found. So a set of any size
needs a few bytes per detection, and processes exchange what their detections found, not masks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped, UInt8

from asterism.extras.detection.coco_rules import OVERLAPS, SIZES, right_and_wrong, sized
from asterism.extras.detection.compared import Compare, Compared, compared_boxes, compared_masks, joined
from asterism.extras.detection.objects import Detections, TrueObjects
from asterism.extras.detection.precision_at_recalls import precision_at_recalls
from asterism.ops import collectives


class AveragePrecision:
    """AP, AP50, AP75 and by size of boxes, and with the prefix `mask_` of masks, in percent.

    A size that no object has gets no value.
    """

    def __init__(self, classes: int, masks: bool) -> None:
        self._classes = classes
        self._compare: dict[str, Compare] = {"": compared_boxes}
        if masks:
            self._compare["mask_"] = compared_masks
        self._images: dict[str, list[Compared]] = {prefix: [] for prefix in self._compare}

    def update(self, predictions: Sequence[Detections], truths: Sequence[TrueObjects]) -> None:
        for prediction, truth in zip(predictions, truths, strict=True):
            for prefix, compare in self._compare.items():
                self._images[prefix].append(compare(prediction, truth))

    def gathered(self) -> dict[str, float]:
        """A collective: every process calls it."""
        return {
            f"{prefix}{name}": value
            for prefix, images in self._images.items()
            for name, value in _values(images, self._classes).items()
        }


def _values(images: Sequence[Compared], classes: int) -> dict[str, float]:
    own = joined(images)
    sizes = sized(own.object_areas)
    right, wrong = right_and_wrong(own.pairs, sized(own.areas), sizes, own.crowd)
    numbers = np.arange(len(images)) * collectives.world_size() + collectives.rank()
    found = _Found(
        images=np.repeat(numbers, np.array([len(image.labels) for image in images], dtype=int)),
        labels=own.labels,
        scores=own.scores,
        right=_packed(right),
        wrong=_packed(wrong),
    )
    counted = (sizes & ~own.crowd[:, None]).T
    objects = np.stack([np.bincount(own.object_labels[each], minlength=classes) for each in counted])
    return _averages(found.gathered(), collectives.all_reduce_sum(torch.from_numpy(objects)).numpy())


@dataclass(frozen=True)
class _Found:
    """What detections found."""

    images: Int[np.ndarray, " n"]
    labels: Int[np.ndarray, " n"]
    scores: Float[np.ndarray, " n"]
    right: UInt8[np.ndarray, "n bytes"]  # a bit for every size and overlap
    wrong: UInt8[np.ndarray, "n bytes"]

    def gathered(self) -> _Found:
        """Of all processes."""
        return _Found(*map(_from_all_processes, (self.images, self.labels, self.scores, self.right, self.wrong)))


def _averages(found: _Found, objects: Int[np.ndarray, "sizes classes"]) -> dict[str, float]:
    """Means over overlaps and recalls, and over the classes that have objects of a size."""
    order = np.lexsort((found.images, -found.scores, found.labels))
    edges = np.searchsorted(found.labels[order], np.arange(objects.shape[1] + 1))
    sums = np.zeros((len(SIZES), len(OVERLAPS)))
    for label in np.flatnonzero(objects.any(axis=0)).tolist():
        own = order[edges[label] : edges[label + 1]]
        right, wrong = (_curves(bits[own]) for bits in (found.right, found.wrong))
        for size in np.flatnonzero(objects[:, label]).tolist():  # one at a time: a class can have a million detections
            count = objects[size, label].repeat(len(OVERLAPS))
            sums[size] += precision_at_recalls(right[size], wrong[size], count).mean(axis=1)
    classes = (objects > 0).sum(axis=1)
    whole, *by_size = 100 * sums / np.maximum(classes, 1)[:, None]
    values = {"AP": whole.mean(), "AP50": whole[0], "AP75": whole[5]}
    values |= {
        f"AP_{name}": mean
        for name, mean, some in zip(list(SIZES)[1:], np.mean(by_size, axis=1), classes[1:] > 0, strict=True)
        if some
    }
    return {name: float(value) for name, value in values.items()}


def _packed(found: Bool[np.ndarray, "n sizes overlaps"]) -> UInt8[np.ndarray, "n bytes"]:
    return np.packbits(found.reshape(len(found), found.shape[1] * found.shape[2]), axis=1)


def _curves(bits: UInt8[np.ndarray, "n bytes"]) -> Bool[np.ndarray, "sizes overlaps n"]:
    shape = (len(SIZES), len(OVERLAPS), len(bits))
    return np.unpackbits(bits, axis=1, count=shape[0] * shape[1]).T.reshape(shape).astype(bool)


def _from_all_processes(rows: Shaped[np.ndarray, "own ..."]) -> Any:
    return collectives.all_gather_ragged_rows(torch.from_numpy(rows)).numpy()
