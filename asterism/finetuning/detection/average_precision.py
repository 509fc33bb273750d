"""COCO's average precision, computed by pycocotools while predictions stream by.

Masks and boxes of an image are compared as soon as it is predicted. What is kept of it is what the averages need: for
each detection its score, and at every overlap whether it found an object. So a set of any size needs a few bytes per
detection, and processes exchange these bytes, not masks.
"""

from __future__ import annotations

import contextlib
import importlib
import io
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asterism.data.sources.objects.run_lengths import quiet_coco
from asterism.errors import MissingExtra
from asterism.finetuning.detection.objects import Detections, TrueObjects
from asterism.ops import collectives

# name of a value: its place in pycocotools' summary
_VALUES = {"AP": 0, "AP50": 1, "AP75": 2, "AP_small": 3, "AP_medium": 4, "AP_large": 5}


class AveragePrecision:
    """AP, AP50, AP75 and by size of boxes, and with the prefix `mask_` of masks, in percent.

    A size that no object has gets no value.
    """

    def __init__(self, classes: int, masks: bool) -> None:
        kinds = {"": "bbox", "mask_": "segm"} if masks else {"": "bbox"}
        self._kinds = {prefix: _Matches(classes, kind) for prefix, kind in kinds.items()}

    def update(self, predictions: Sequence[Detections], truths: Sequence[TrueObjects]) -> None:
        with quiet_coco():
            for prediction, truth in zip(predictions, truths, strict=True):
                for each in self._kinds.values():
                    each.add(prediction, truth)

    def gathered(self) -> dict[str, float]:
        return {
            f"{prefix}{name}": value for prefix, each in self._kinds.items() for name, value in each.gathered().items()
        }


class _Matches:
    """The comparisons of one kind, boxes or masks."""

    def __init__(self, classes: int, kind: str) -> None:
        self._kind = kind
        self._classes = classes
        self._images = 0
        parameters = self._evaluation().params
        self._areas, self._overlaps = parameters.areaRng, parameters.iouThrs
        self._most = parameters.maxDets[-1]
        self._heads: list[tuple[int, int, int, int]] = []  # class, image, detections, objects
        self._scores: list[NDArray[np.float64]] = []
        self._matched: list[NDArray[np.uint8]] = []  # [detections, areas · overlaps]
        self._ignored: list[NDArray[np.uint8]] = []
        self._left_out: list[NDArray[np.uint8]] = []  # [objects, areas]: objects of another size, and crowds

    def add(self, prediction: Detections, truth: TrueObjects) -> None:
        number = self._images * collectives.world_size() + collectives.rank()
        self._images += 1
        evaluation = self._evaluation()
        evaluation._gts.update(_by_class(truth.as_coco(number)))
        found = replace(prediction, run_lengths=None) if self._kind == "bbox" else prediction
        evaluation._dts.update(_by_class(found.as_coco(number)))
        for label in sorted({key[1] for key in (*evaluation._gts, *evaluation._dts)}):
            evaluation.ious[number, label] = evaluation.computeIoU(number, label)
            by_area = [evaluation.evaluateImg(number, label, area, self._most) for area in self._areas]
            detections, objects = len(by_area[0]["dtIds"]), len(by_area[0]["gtIds"])
            self._heads.append((label, number, detections, objects))
            self._scores.append(np.array(by_area[0]["dtScores"], dtype=np.float64))
            self._matched.append(_rows([each["dtMatches"] != 0 for each in by_area], detections))
            self._ignored.append(_rows([each["dtIgnore"] != 0 for each in by_area], detections))
            self._left_out.append(np.stack([each["gtIgnore"] for each in by_area], axis=1).astype(np.uint8))

    def gathered(self) -> dict[str, float]:
        """A collective: every process calls it."""
        columns = len(self._areas) * len(self._overlaps)
        heads = _everyone(torch.tensor(self._heads, dtype=torch.int64).view(-1, 4)).tolist()
        scores = _everyone(_joined(self._scores, np.float64)).numpy()
        matched = _everyone(_joined(self._matched, np.uint8, columns)).numpy()
        ignored = _everyone(_joined(self._ignored, np.uint8, columns)).numpy()
        left_out = _everyone(_joined(self._left_out, np.uint8, len(self._areas))).numpy()
        images = sorted({image for _, image, _, _ in heads})
        place = {image: number for number, image in enumerate(images)}
        evaluation = self._evaluation()
        evaluation.params.imgIds = list(range(len(images)))
        evaluation.params.catIds = list(range(1, 1 + self._classes))
        records: list[Any] = [None] * (self._classes * len(self._areas) * len(images))
        first_detection = first_object = 0
        for label, image, detections, objects in heads:
            rows = slice(first_detection, first_detection + detections)
            shape = (detections, len(self._areas), len(self._overlaps))
            own_matched, own_ignored = matched[rows].reshape(shape), ignored[rows].reshape(shape)
            outside = left_out[first_object : first_object + objects]
            for area in range(len(self._areas)):
                records[((label - 1) * len(self._areas) + area) * len(images) + place[image]] = {
                    "dtScores": scores[rows].tolist(),
                    "dtMatches": own_matched[:, area].T,
                    "dtIgnore": own_ignored[:, area].T,
                    "gtIgnore": outside[:, area],
                }
            first_detection, first_object = rows.stop, first_object + objects
        evaluation.evalImgs, evaluation._paramsEval = records, evaluation.params
        return _summarised(evaluation)

    def _evaluation(self) -> Any:
        """An evaluation of pycocotools without any image; objects are put in directly."""
        try:
            module = importlib.import_module("pycocotools.cocoeval")
        except ModuleNotFoundError:
            raise MissingExtra("pycocotools", "detect") from None
        evaluation = module.COCOeval(iouType=self._kind)
        evaluation._gts, evaluation._dts = defaultdict(list), defaultdict(list)
        evaluation.ious = {}
        return evaluation


def _summarised(evaluation: Any) -> dict[str, float]:
    with contextlib.redirect_stdout(io.StringIO()), quiet_coco():
        evaluation.accumulate()
        evaluation.summarize()
    found = {name: float(evaluation.stats[place]) for name, place in _VALUES.items()}
    values = {name: 100 * value for name, value in found.items() if value >= 0}
    return {"AP": 0.0, "AP50": 0.0, "AP75": 0.0} | values


def _by_class(records: Sequence[dict[str, Any]]) -> dict[tuple[int, int], list[dict[str, Any]]]:
    found: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for record in records:
        found.setdefault((record["image_id"], record["category_id"]), []).append(record)
    return found


def _rows(found: Sequence[NDArray[np.bool_]], detections: int) -> NDArray[np.uint8]:
    """One row per detection from a table of overlaps × detections for every area."""
    table = np.stack(found)
    return table.transpose(2, 0, 1).reshape(detections, table.shape[0] * table.shape[1]).astype(np.uint8)


def _joined(parts: Sequence[NDArray[Any]], kind: Any, columns: int | None = None) -> Tensor:
    empty = np.empty((0,) if columns is None else (0, columns), dtype=kind)
    return torch.from_numpy(np.concatenate([empty, *parts]))


def _everyone(rows: Tensor) -> Tensor:
    return collectives.all_gather_ragged_rows(rows)
