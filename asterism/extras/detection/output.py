"""Detections as files: COCO's JSON for programs.

predictions.json   a complete annotation file with scores: images, categories, annotations
coco-results.json  the annotations alone, as COCO's evaluation loads results, with the same ids
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxtyping import UInt8
from torch import Tensor

from asterism.files import write_text

if TYPE_CHECKING:
    from asterism.extras.detection.objects import Detections


class CocoResults:
    """Collects the detections of each image."""

    def __init__(self, folder: Path, classes: tuple[str, ...]) -> None:
        self._folder = folder
        self._categories = [{"id": 1 + place, "name": name} for place, name in enumerate(classes)]
        self._images: list[dict[str, Any]] = []
        self._annotations: list[dict[str, Any]] = []

    def add(self, key: str, image: UInt8[Tensor, "3 h w"], prediction: Detections) -> None:
        number = 1 + len(self._images)
        self._images.append({"id": number, "file_name": key, "height": image.shape[1], "width": image.shape[2]})
        for record in prediction.as_coco(number):
            record["bbox"] = [round(value, 2) for value in record["bbox"]]
            record |= {"score": round(record["score"], 5), "area": round(record["area"], 1), "iscrowd": 0}
            if "segmentation" in record:
                mask = record["segmentation"]
                record["segmentation"] = {"size": list(mask["size"]), "counts": mask["counts"].decode()}
            self._annotations.append({**record, "id": 1 + len(self._annotations)})

    def close(self) -> list[Path]:
        whole = {"images": self._images, "categories": self._categories, "annotations": self._annotations}
        results = [{name: value for name, value in each.items() if name != "iscrowd"} for each in self._annotations]
        written = {"predictions.json": whole, "coco-results.json": results}
        for name, content in written.items():
            write_text(self._folder / name, json.dumps(content, ensure_ascii=False) + "\n")
        return [self._folder / name for name in written]
