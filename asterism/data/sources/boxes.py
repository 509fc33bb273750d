"""Images with bounding boxes: from a folder's boxes.json, or from sources that provide them, such as scenes.

boxes.json is at the top of the folder and maps the path of an image, relative to that folder, to its box or to a list
of boxes. A box is [x0, y0, x1, y1]: the first and the last column and row of the object, counted from 0, as in
ImageNet's annotations.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, UInt8
from numpy.typing import NDArray
from torch import Tensor

from asterism.data.sources.derived import Wrapped
from asterism.data.sources.source import Sample, Source
from asterism.errors import UserError
from asterism.images.centre_crop import center_square
from asterism.inputs import read_json, user_path

FILE_NAME = "boxes.json"


@dataclass(frozen=True)
class BoxedBatch:
    """Images, centre-cropped, with the boxes of their class."""

    images: UInt8[Tensor, "b 3 s s"]
    sizes: list[tuple[int, int]]  # height and width of each original image
    boxes: list[Float[Tensor, "_ 4"]]  # left, top, right, bottom edges in pixels of the original image; may be empty


class WithBoxes(Wrapped):
    """A source with boxes added to its samples by key."""

    def __init__(self, source: Source, boxes: Mapping[str, NDArray[np.float64]]) -> None:
        super().__init__(source)
        self._boxes = dict(boxes)

    @property
    def fingerprint(self) -> str:
        text = json.dumps({key: boxes.tolist() for key, boxes in sorted(self._boxes.items())})
        return hashlib.blake2b(f"{self.source.fingerprint} {text}".encode(), digest_size=8).hexdigest()

    def __getitem__(self, index: int) -> Sample:
        sample = self.source[index]
        boxes = self._boxes.get(sample.key)
        return sample if boxes is None else replace(sample, boxes=torch.from_numpy(boxes))


def with_boxes(source: Source, path: str) -> Source:
    """The source with the boxes of `path`/boxes.json, or unchanged if that file does not exist."""
    file = user_path(path) / FILE_NAME
    return WithBoxes(source, read_boxes(file)) if file.is_file() else source


def read_boxes(file: Path) -> dict[str, NDArray[np.float64]]:
    """The boxes of each image by key, as left, top, right, bottom edges; the last column and row are inside the box."""
    content = read_json(file)
    if not isinstance(content, dict):
        raise UserError(f"{file} holds a {type(content).__name__}; it must map image paths to boxes")
    return {key: _edges(file, key, value) for key, value in content.items()}


def boxes_of_label(sample: Sample) -> Float[Tensor, "_ 4"]:
    """The boxes of objects of the image's label. Sources that mark every object also have boxes of other classes."""
    if sample.boxes is None:
        return torch.empty(0, 4, dtype=torch.float64)
    boxes = sample.boxes.double()
    if sample.instances is None or sample.semantic is None or sample.label is None:
        return boxes
    own_pixels = sample.instances[sample.semantic == 1 + sample.label]  # in `semantic` 0 is the background
    of_label = torch.unique(own_pixels)
    return boxes[of_label[of_label > 0] - 1]


@dataclass(frozen=True)
class BoxedSquares:
    """Makes a batch of images and boxes: shorter side resized to `resize`, then a centre crop of `size`."""

    size: int
    resize: int

    def __call__(self, samples: Iterable[Sample], keys: Sequence[int] = ()) -> BoxedBatch:
        images, sizes, boxes = [], [], []
        for sample in samples:
            images.append(center_square(sample.image, self.size, self.resize))
            sizes.append((sample.image.shape[1], sample.image.shape[2]))
            boxes.append(boxes_of_label(sample))
        pixels = torch.stack(images) if images else torch.empty(0, 3, self.size, self.size, dtype=torch.uint8)
        return BoxedBatch(pixels, sizes, boxes)


def _edges(file: Path, key: str, value: object) -> NDArray[np.float64]:
    try:
        boxes = np.array(value, dtype=np.float64).reshape(-1, 4)
    except (TypeError, ValueError):
        boxes = np.empty((0, 0))
    if not boxes.size or not np.isfinite(boxes).all() or (boxes[:, 2:] < boxes[:, :2]).any():
        raise UserError(
            f"{file}: the box of {key!r} is {value}; write [x0, y0, x1, y1] in pixels with x0 ≤ x1 and y0 ≤ y1, or a "
            "list of such boxes"
        )
    return boxes + np.array([0, 0, 1, 1])
