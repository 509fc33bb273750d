"""COCO's instance annotations as masks of classes: background, then the categories by ascending id."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from asterism.errors import UserError
from asterism.images.masks import VOID


class CocoMasks:
    """Masks of the images of one annotation file. Smaller objects are drawn over larger ones; crowds are void."""

    def __init__(self, path: Path) -> None:
        self.path = path
        content = _read(path)
        categories = sorted(content["categories"], key=lambda category: category["id"])
        if len(categories) >= VOID:
            raise UserError(f"{path} has {len(categories)} categories; at most {VOID - 1} are supported")
        self.classes = ["background", *(category["name"] for category in categories)]
        self._number = {category["id"]: 1 + place for place, category in enumerate(categories)}
        self.images: dict[str, int] = {image["file_name"]: image["id"] for image in content["images"]}
        self._sizes = {image["id"]: (image["height"], image["width"]) for image in content["images"]}
        self._objects: dict[int, list[Mapping[str, Any]]] = {}
        for annotation in content["annotations"]:
            if annotation["category_id"] not in self._number:
                raise UserError(
                    f"{path}: annotation {annotation['id']} has the unknown category {annotation['category_id']}"
                )
            self._objects.setdefault(annotation["image_id"], []).append(annotation)

    def __call__(self, image: int) -> NDArray[np.integer]:
        """The mask of the image with this id."""
        size = self._sizes[image]
        mask = np.zeros(size, dtype=np.int64)
        for annotation in sorted(self._objects.get(image, ()), key=lambda a: (not a.get("iscrowd"), -a["area"])):
            shape = self._shape(annotation, size)
            mask[shape] = VOID if annotation.get("iscrowd") else self._number[annotation["category_id"]]
        return mask

    def _shape(self, annotation: Mapping[str, Any], size: tuple[int, int]) -> NDArray[np.bool_]:
        segmentation = annotation["segmentation"]
        if isinstance(segmentation, Mapping):
            return self._from_runs(segmentation, annotation)
        return polygons(segmentation, size)

    def _from_runs(self, segmentation: Mapping[str, Any], annotation: Mapping[str, Any]) -> NDArray[np.bool_]:
        """Decode run lengths, alternately of background and object, column by column."""
        counts = segmentation["counts"]
        if isinstance(counts, str):
            raise UserError(
                f"{self.path}: annotation {annotation['id']} is a compressed run-length mask; convert it with "
                "pycocotools to polygons or plain run lengths"
            )
        height, width = segmentation["size"]
        values = np.repeat(np.arange(len(counts)) % 2 == 1, counts)
        return values.reshape(width, height).T


def polygons(outlines: Sequence[Sequence[float]], size: tuple[int, int]) -> NDArray[np.bool_]:
    """Pixels inside any of the outlines, each x, y, x, y … in pixels."""
    canvas = Image.new("1", (size[1], size[0]))
    pen = ImageDraw.Draw(canvas)
    for outline in outlines:
        if len(outline) >= 6:
            pen.polygon([float(value) for value in outline], fill=1, outline=1)
    return np.array(canvas, dtype=bool)


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        missing = [name for name in ("images", "annotations", "categories") if name not in content]
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"cannot read {path}: {error}") from None
    if missing:
        raise UserError(f"{path} lacks {', '.join(missing)}; it must be a COCO instance annotation file")
    return content
