"""The average precision of the UAVDT benchmark (Du et al., 2018), which FLSL's table 3 reports.

All classes count as one. Detections that are strictly inside an ignored region are left out. The others are given to
objects by descending score: each to the free object that it overlaps most, by at least 0.7. The value is the area under
the curve of precision over recall, made monotonic as in Pascal VOC from 2010 on, over all frames together.

Ignored regions are crowds of the truth. As in the benchmark's own code, objects inside them still have to be found.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torchvision.ops import box_iou

from asterism.extras.detection.objects import Detections, TrueObjects
from asterism.ops import collectives

_OVERLAP = 0.7  # least intersection over union


class UavdtPrecision:
    """Keeps the score of every detection and whether it found an object. The value `AP` is in percent."""

    def __init__(self) -> None:
        self._objects = 0
        self._rows: list[Float[Tensor, "n 2"]] = []  # score, and 1 if it found an object

    def update(self, predictions: Sequence[Detections], truths: Sequence[TrueObjects]) -> None:
        for prediction, truth in zip(predictions, truths, strict=True):
            outside = ~_strictly_inside(prediction.boxes, truth.boxes[truth.crowd])
            scores, order = prediction.scores[outside].double().sort(descending=True, stable=True)
            objects = truth.boxes[~truth.crowd]
            self._objects += len(objects)
            found = _found(prediction.boxes[outside][order], objects)
            self._rows.append(torch.stack([scores, found.double()], dim=1))

    def gathered(self) -> dict[str, float]:
        rows = collectives.all_gather_ragged_rows(torch.cat([torch.zeros(0, 2, dtype=torch.float64), *self._rows]))
        objects = int(collectives.all_reduce_sum(torch.tensor([self._objects]))[0])
        order = rows[:, 0].argsort(descending=True, stable=True)
        return {"AP": 100 * area_under_curve(rows[order, 1] > 0, objects)}


def area_under_curve(found: Bool[Tensor, " n"], objects: int) -> float:
    """found: of detections by descending score, whether each found an object."""
    if not objects or not len(found):
        return 0.0
    hits = found.double().cumsum(dim=0)
    recall = hits / objects
    precision = hits / torch.arange(1, len(found) + 1, dtype=torch.float64)
    best_from_here = precision.flip(0).cummax(dim=0).values.flip(0)
    steps = torch.diff(recall, prepend=recall.new_zeros(1))
    return float((steps * best_from_here).sum())


def _found(boxes: Float[Tensor, "n 4"], objects: Float[Tensor, "m 4"]) -> Bool[Tensor, " n"]:
    """Whether each detection, by descending score, gets an object of its own."""
    overlaps = box_iou(boxes, objects)
    found = torch.zeros(len(boxes), dtype=torch.bool)
    if not len(objects):
        return found
    for place, own in enumerate(overlaps):
        overlap, best = own.max(dim=0)
        if overlap >= _OVERLAP:
            found[place] = True
            overlaps[:, best] = -1
    return found


def _strictly_inside(boxes: Float[Tensor, "n 4"], regions: Float[Tensor, "r 4"]) -> Bool[Tensor, " n"]:
    first, last = boxes[:, None, :2] > regions[None, :, :2], boxes[:, None, 2:] < regions[None, :, 2:]
    return (first.all(dim=2) & last.all(dim=2)).any(dim=1)
