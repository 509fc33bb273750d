"""Images with ground truth for retrieval, in the format of the revisited Oxford and Paris sets.

A folder with `gnd_<name>.json` (or the authors' `.pkl`) and the images it lists, in `jpg/`, `images/` or next to it.
`imlist` is the database, `qimlist` the queries. For each query, `gnd` has in `easy`, `hard` and `junk` positions in
`imlist`, and in `bbx` the region of the query image to search for: left, top, right, bottom in pixels.
"""

from __future__ import annotations

import hashlib
import json
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import Any

from asterism.data.sources.source import Sample
from asterism.errors import UserError, reason_of
from asterism.images.decode import decode
from asterism.inputs import MAX_TEXT, read_json, read_regular, user_path

_FOLDERS = ("jpg", "images", ".")
_ENDINGS = (".jpg", ".jpeg", ".png", ".JPG")
Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class GroundTruth:
    """For every query, the positions of images of the same landmark, easy or hard to recognise, and of ignored ones."""

    name: str
    images: list[str]
    queries: list[str]
    easy: list[list[int]]
    hard: list[list[int]]
    junk: list[list[int]]
    boxes: list[Box]


class Landmarks:
    """Images by name, cropped to their boxes if there are any."""

    classes = None

    def __init__(self, name: str, folder: Path, names: Sequence[str], boxes: Sequence[Box] | None = None) -> None:
        self.name = name
        self.root = folder
        self.names = list(names)
        self._boxes = boxes
        self._files = [_file(folder, each) for each in names]

    @cached_property
    def fingerprint(self) -> str:
        text = json.dumps([self.name, self.names, self._boxes])
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> Sample:
        if not 0 <= index < len(self):
            raise IndexError(index)
        image, key = decode(self._files[index], self.names[index]), self.names[index]
        if self._boxes is not None:
            left, top, right, bottom = (round(edge) for edge in self._boxes[index])
            image = image[:, max(0, top) : bottom, max(0, left) : right]
            if not image.numel():
                raise UserError(f"the box {self._boxes[index]} of query {key} is outside its image")
        return Sample(image, key)

    def label(self, index: int) -> None:
        return None

    def keys(self) -> list[str]:
        return self.names

    def files(self) -> list[Path]:
        return self._files


def ground_truth_file(path: str) -> Path | None:
    """The ground-truth file of a retrieval set, if there is one; `path` is its folder or the file itself."""
    place = user_path(path)
    if place.is_file() and place.suffix in (".json", ".pkl"):
        return place
    found = [file for ending in ("json", "pkl") for file in sorted(place.glob(f"gnd_*.{ending}"))]
    if len({file.stem for file in found}) > 1:
        names = ", ".join(file.name for file in found)
        raise UserError(f"{place} holds several ground-truth files ({names}); name one of them")
    return found[0] if found else None


def read_ground_truth(file: Path) -> GroundTruth:
    content = _read(file)
    try:
        entries = content["gnd"]
        truth = GroundTruth(
            name=file.stem.removeprefix("gnd_"),
            images=list(content["imlist"]),
            queries=list(content["qimlist"]),
            easy=[[int(place) for place in entry["easy"]] for entry in entries],
            hard=[[int(place) for place in entry["hard"]] for entry in entries],
            junk=[[int(place) for place in entry["junk"]] for entry in entries],
            boxes=[_box(entry["bbx"]) for entry in entries],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{file} is not ground truth in the revisited Oxford and Paris format: {error!r}") from None
    if len(entries) != len(truth.queries):
        raise UserError(f"{file} has {len(truth.queries)} queries, but ground truth for {len(entries)}")
    largest = max(
        (place for lists in (truth.easy, truth.hard, truth.junk) for row in lists for place in row), default=0
    )
    if largest >= len(truth.images):
        raise UserError(f"{file} refers to image {largest}, but lists {len(truth.images)} images")
    return truth


def open_landmarks(file: Path, truth: GroundTruth) -> tuple[Landmarks, Landmarks]:
    """The database, and the queries cropped to their boxes."""
    database = Landmarks(f"{truth.name}/images", file.parent, truth.images)
    return database, Landmarks(f"{truth.name}/queries", file.parent, truth.queries, truth.boxes)


def _box(values: Any) -> Box:
    left, top, right, bottom = (float(value) for value in values)
    return left, top, right, bottom


def _file(folder: Path, name: str) -> Path:
    for place in _FOLDERS:
        for ending in _ENDINGS:
            if (path := folder / place / f"{name}{ending}").is_file():
                return path
    raise UserError(f"the image {name} is missing; put it into {folder / 'jpg'} as {name}.jpg")


def _read(file: Path) -> Mapping[str, Any]:
    try:
        if file.suffix == ".json":
            return read_json(file)
        return _PlainUnpickler(BytesIO(read_regular(file, MAX_TEXT))).load()
    except UserError:
        raise
    except Exception as error:  # on damaged pickles, Python raises almost any exception
        raise UserError(f"cannot read {file}: {reason_of(error)}") from None


class _PlainUnpickler(pickle.Unpickler):
    """Loads only lists, dictionaries, numbers and strings; a pickle that refers to a class or function is rejected."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it holds {module}.{name}, but only plain lists and numbers are accepted")
