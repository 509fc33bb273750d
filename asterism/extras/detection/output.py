"""Detections as people and programs see them: drawn over their image, as a table of a report, and as COCO's JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, UInt8
from PIL import ImageDraw, ImageFont
from torch import Tensor

from asterism.extras.detection.objects import SURE, Detections, TrueObjects, found_pairs
from asterism.files import write_text
from asterism.images.palette import palette
from asterism.images.write import to_pillow
from asterism.viz import page
from asterism.viz.console import one_line
from asterism.viz.page import Section
from asterism.viz.pictures import magnified

_LEAST = 256  # pixels of the shorter side: smaller images are enlarged, so that names are readable
_TINT = 0.45  # share of the colour inside a mask
_MOST = 100  # classes that are listed, those with most objects first


def drawn_objects(
    image: UInt8[Tensor, "3 h w"],
    boxes: Float[Tensor, "n 4"],
    labels: Int[Tensor, " n"],
    captions: Sequence[str],
    masks: Bool[Tensor, "n h w"] | None,
) -> UInt8[Tensor, "3 _ _"]:
    """The picture, enlarged if it is small; one colour per class."""
    picture = image.cpu()
    colours = palette(2 + int(labels.max()) if len(labels) else 1)
    if masks is not None:
        picture = picture.clone()
        for mask, label in zip(masks, labels.tolist(), strict=True):
            colour = torch.tensor(colours[1 + label], dtype=torch.float32)[:, None]
            inside = picture[:, mask].float()
            picture[:, mask] = ((1 - _TINT) * inside + _TINT * colour).round().to(torch.uint8)
    large = magnified(picture[None], _LEAST)[0]
    scale = large.shape[1] / picture.shape[1]
    canvas = to_pillow(large)
    pen = ImageDraw.Draw(canvas)
    line = max(2, round(min(large.shape[1:]) / 200))
    letters = max(12, min(large.shape[1:]) // 30)
    font = ImageFont.load_default(letters)
    for box, label, caption in zip(boxes.tolist(), labels.tolist(), map(one_line, captions), strict=True):
        left, top, right, bottom = (round(scale * edge) for edge in box)
        pen.rectangle((left, top, max(left, right - 1), max(top, bottom - 1)), outline=colours[1 + label], width=line)
        place = (left, max(0, top - letters - 4))
        pen.rectangle(pen.textbbox(place, caption, font=font), fill=colours[1 + label])
        pen.text(place, caption, fill="white", font=font)
    return torch.from_numpy(np.array(canvas)).permute(2, 0, 1)


def class_section(classes: Sequence[str], pairs: Sequence[tuple[Detections, TrueObjects]]) -> Section:
    """pairs: predictions and truths of images."""
    found, wrong, missed = Counter[int](), Counter[int](), Counter[int]()
    for prediction, truth in pairs:
        right, others, left = found_pairs(prediction, truth)
        found.update(int(truth.labels[place]) for _, place in right)
        wrong.update(int(prediction.labels[place]) for place in others)
        missed.update(int(truth.labels[place]) for place in left)
    seen = sorted({*found, *wrong, *missed}, key=lambda label: (-found[label] - missed[label], label))[:_MOST]
    rows = [
        [
            classes[label],
            str(found[label] + missed[label]),
            _share(found[label], found[label] + missed[label]),
            _share(found[label], found[label] + wrong[label]),
        ]
        for label in seen
    ]
    body = page.table(["class", "objects", "found", "right"], rows) if rows else page.note("No objects.")
    return Section(
        "Objects by class",
        body,
        f"Detections with a score of at least {SURE:g}, right if they overlap an object of their class by half. Found: "
        "share of the objects. Right: share of the detections.",
    )


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else "–"


class CocoResults:
    """Collects the detections of each image.

    predictions.json   a complete annotation file with scores: images, categories, annotations
    coco-results.json  the annotations alone, as COCO's evaluation loads results, with the same ids
    """

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
