"""COCO's instance annotations as masks of classes: background, then the categories by ascending id."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from asterism.errors import UserError, reason_of
from asterism.images.bad_image import BadImage
from asterism.images.limits import check_size
from asterism.images.masks import VOID
from asterism.inputs import read_json

_FAR = 1e6  # pixels; coordinates beyond are outside every image


class CocoMasks:
    """Masks of the images of one annotation file. Smaller objects are drawn over larger ones; crowds are void."""

    def __init__(self, path: Path) -> None:
        self.path = path
        content = _read(path)
        try:
            categories = sorted(content["categories"], key=lambda category: category["id"])
            self.classes = ["background", *(str(category["name"]) for category in categories)]
            self._number = {category["id"]: 1 + place for place, category in enumerate(categories)}
            self.images: dict[str, int] = {str(image["file_name"]): image["id"] for image in content["images"]}
            self._sizes = {image["id"]: (image["height"], image["width"]) for image in content["images"]}
            self._objects: dict[int, list[Mapping[str, Any]]] = {}
            for annotation in content["annotations"]:
                if annotation["category_id"] not in self._number:
                    raise UserError(
                        f"{path}: annotation {annotation['id']} has the unknown category {annotation['category_id']}"
                    )
                self._objects.setdefault(annotation["image_id"], []).append(annotation)
        except (KeyError, TypeError, IndexError, AttributeError) as error:
            raise UserError(f"{path} is not a COCO instance annotation file: {_flaw(error)}") from None
        if len(categories) >= VOID:
            raise UserError(f"{path} has {len(categories)} categories; at most {VOID - 1} are supported")
        for name, image in self.images.items():
            if not isinstance(image, int):
                raise UserError(f"{path}: the image {name} has the id {image!r}; ids are whole numbers")
            _check_size(path, name, self._sizes[image])

    def __call__(self, image: int) -> NDArray[np.integer]:
        """The mask of the image with this id."""
        size = self._sizes[image]
        mask = np.zeros(size, dtype=np.int64)
        try:
            for annotation in sorted(self._objects.get(image, ()), key=lambda a: (not a.get("iscrowd"), -a["area"])):
                shape = self._shape(annotation, size)
                mask[shape] = VOID if annotation.get("iscrowd") else self._number[annotation["category_id"]]
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
            raise UserError(f"{self.path}: an annotation of image {image} is damaged: {_flaw(error)}") from None
        return mask

    def _shape(self, annotation: Mapping[str, Any], size: tuple[int, int]) -> NDArray[np.bool_]:
        segmentation = annotation["segmentation"]
        if isinstance(segmentation, Mapping):
            return self._from_runs(segmentation, annotation, size)
        return polygons(segmentation, size)

    def _from_runs(
        self, segmentation: Mapping[str, Any], annotation: Mapping[str, Any], size: tuple[int, int]
    ) -> NDArray[np.bool_]:
        """Decode run lengths, alternately of background and object, column by column."""
        counts = segmentation["counts"]
        if isinstance(counts, str):
            raise UserError(
                f"{self.path}: annotation {annotation['id']} is a compressed run-length mask; convert it to polygons "
                "or plain run lengths"
            )
        height, width = segmentation["size"]
        lengths = np.array(counts, dtype=np.int64)
        if (height, width) != size or lengths.ndim != 1 or (lengths < 0).any() or lengths.sum() != height * width:
            raise ValueError(f"its runs do not add up to the {size[1]}×{size[0]} pixels of the image")
        values = np.repeat(np.arange(len(lengths)) % 2 == 1, lengths)
        return values.reshape(width, height).T


def polygons(outlines: Sequence[Sequence[float]], size: tuple[int, int]) -> NDArray[np.bool_]:
    """Pixels inside any of the outlines, each x, y, x, y … in pixels."""
    canvas = Image.new("1", (size[1], size[0]))
    pen = ImageDraw.Draw(canvas)
    for outline in outlines:
        points = np.array(outline, dtype=np.float64)
        if not np.isfinite(points).all():
            raise ValueError("a polygon with a coordinate that is not a number")
        if points.ndim == 1 and len(points) >= 6:
            pen.polygon(points[: len(points) // 2 * 2].clip(-_FAR, _FAR).tolist(), fill=1, outline=1)
    return np.array(canvas, dtype=bool)


def _read(path: Path) -> dict[str, Any]:
    content = read_json(path)
    if not isinstance(content, dict):
        raise UserError(f"{path} holds a {type(content).__name__}; it must be a COCO instance annotation file")
    missing = [name for name in ("images", "annotations", "categories") if not isinstance(content.get(name), list)]
    if missing:
        raise UserError(f"{path} lacks {', '.join(missing)}; it must be a COCO instance annotation file")
    return content


def _check_size(path: Path, name: str, size: tuple[Any, Any]) -> None:
    if not all(isinstance(side, int) for side in size):
        raise UserError(f"{path}: the image {name} has the size {size[1]}×{size[0]}, which is not in pixels")
    try:
        check_size(size[1], size[0], name)
    except BadImage as error:
        raise UserError(f"{path}: {error}") from None


def _flaw(error: Exception) -> str:
    return f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else reason_of(error)
