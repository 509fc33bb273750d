"""COCO's average precision, by faster-coco-eval. Of each image, boxes, scores and compressed masks are kept."""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence

import numpy as np
import torch

from asterism.extras.detection.objects import Detections, TrueObjects
from asterism.extras.detection.sources.run_lengths import coco_library
from asterism.ops import collectives

_NAMES = ("AP", "AP50", "AP75", "AP_small", "AP_medium", "AP_large")


class AveragePrecision:
    """AP, AP50, AP75 and by size of boxes, and with the prefix `mask_` of masks, in percent.

    A size that no object has gets no value.
    """

    def __init__(self, masks: bool) -> None:
        self._kinds = {"": "bbox", "mask_": "segm"} if masks else {"": "bbox"}
        self._images: list[tuple[Detections, TrueObjects]] = []

    def update(self, predictions: Sequence[Detections], truths: Sequence[TrueObjects]) -> None:
        self._images += zip(predictions, truths, strict=True)

    def gathered(self) -> dict[str, float]:
        """A collective: every process calls it, and computes the values of all images."""
        images = list(enumerate(_of_all_processes(self._images), 1))
        names = images[0][1][1].names if images else ()
        annotations = [record for number, (_, truth) in images for record in truth.as_coco(number)]
        content = {
            "images": [{"id": number, "height": each.size[0], "width": each.size[1]} for number, (_, each) in images],
            "categories": [{"id": 1 + place, "name": name} for place, name in enumerate(names)],
            "annotations": [{**record, "id": number} for number, record in enumerate(annotations, 1)],
        }
        found = [record for number, (prediction, _) in images for record in prediction.as_coco(number)]
        values = {}
        for prefix, kind in self._kinds.items():
            for name, value in zip(_NAMES, _official(content, found, kind), strict=True):
                if value >= 0 or name in _NAMES[:3]:  # −1: no object has this size
                    values[f"{prefix}{name}"] = max(100 * value, 0.0)
        return values


def _official(content: dict[str, object], found: list[dict[str, object]], kind: str) -> list[float]:
    """kind: "bbox", or "segm" for masks."""
    library = coco_library()
    wanted = ("image_id", "category_id", "score", "bbox" if kind == "bbox" else "segmentation")
    truth = library.COCO(content)
    run = library.COCOeval_faster(truth, truth.loadRes([{key: each[key] for key in wanted} for each in found]), kind)
    run.evaluate()
    run.accumulate()
    run.summarize()
    return [float(value) for value in run.stats[: len(_NAMES)]]


def _of_all_processes(images: list[tuple[Detections, TrueObjects]]) -> list[tuple[Detections, TrueObjects]]:
    """In the order of the data: process r of n has every n-th image from the r-th on."""
    if collectives.world_size() == 1:
        return images
    own = torch.from_numpy(np.frombuffer(pickle.dumps(images), np.uint8).copy())
    every = io.BytesIO(collectives.all_gather_ragged_rows(own).numpy().tobytes())
    shares = [pickle.load(every) for _ in range(collectives.world_size())]
    return [share[place] for place in range(max(map(len, shares))) for share in shares if place < len(share)]
