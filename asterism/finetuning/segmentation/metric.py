"""Mean intersection over union, mean class accuracy and pixel accuracy, from counts over the whole set."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from asterism.errors import UserError
from asterism.finetuning.segmentation.maps import Labels, Segmentation
from asterism.images.masks import VOID
from asterism.ops import collectives
from asterism.ops.segmentation_metrics import confusion, iou_by_class, scores


class SegmentationMetric:
    """One table of counts, classes × classes, whatever the number of images. Values are in percent."""

    def __init__(self, classes: Sequence[str], *, each_class: bool) -> None:
        """each_class: also give the intersection over union of every class."""
        self._classes, self._each_class = tuple(classes), each_class
        self._counts: Int[Tensor, "c c"] = torch.zeros(len(classes), len(classes), dtype=torch.int64)

    def update(self, predictions: Sequence[Segmentation], truths: Sequence[Labels]) -> None:
        for prediction, truth in zip(predictions, truths, strict=True):
            self._counts += confusion(prediction.mask, truth.mask, len(self._classes), VOID)

    def gathered(self) -> dict[str, float]:
        counts = collectives.all_reduce_sum(self._counts)
        if not counts.any():
            raise UserError("every pixel of these images is void; there is nothing to measure")
        found = scores(counts)
        values = {"miou": 100 * found.miou, "macc": 100 * found.macc, "aacc": 100 * found.aacc}
        if self._each_class:
            values |= {f"iou/{name}": value for name, value in iou_by_class(found, self._classes).items()}
        return values
