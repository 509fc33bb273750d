"""YOLO's text annotations: labels/NAME.txt next to images/NAME.jpg, one object per line.

A line is the class number followed by x, y, width and height of the box (its centre) or by the points of a polygon, as
shares of the image. Class names are in data.yaml (names), classes.txt, or else the numbers. An image without a file of
labels has no objects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from asterism.config import read_yaml
from asterism.data.sources import splits
from asterism.errors import UserError
from asterism.extras.detection.sources import run_lengths
from asterism.extras.detection.sources.source import AnnotatedImage, AnnotatedImages, Objects, usable_box
from asterism.images.bad_image import BadImage
from asterism.images.decode import SUFFIXES, opened, read_image_file
from asterism.inputs import read_text

_Line = tuple[int, tuple[float, ...]]  # class, and box or polygon as shares


def yolo_parts(root: Path) -> dict[str, Path]:
    """The folders of images with a folder of labels next to them: images/train, train/images, or images itself."""
    found = {}
    for name in splits.NAMES:
        for place in (root / "images" / name, root / name / "images"):
            if place.is_dir() and _labels(place).is_dir():
                found[name] = place
    if not found and (root / "images").is_dir() and (root / "labels").is_dir():
        return {splits.EVERYTHING: root / "images"}
    return found


def open_yolo(root: Path, part: str, folder: Path, *, leave_out: bool) -> AnnotatedImages:
    paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)
    files = [_labels(folder) / f"{path.stem}.txt" for path in paths]
    lines = [_read(file) if file.is_file() else [] for file in files]
    names = _names(root)
    largest = max((number for each in lines for number, _ in each), default=-1)
    if names is None:
        names = [str(number) for number in range(largest + 1)]
    if largest >= len(names):
        raise UserError(
            f"{root} has labels of class {largest}, but names only {len(names)} classes in data.yaml or classes.txt"
        )
    outlined = all(len(numbers) >= 6 for each in lines for _, numbers in each)
    images = []
    for path, file, each in zip(paths, files, lines, strict=True):
        size = _size(path)
        images.append(
            AnnotatedImage(
                path.relative_to(root).as_posix(), path, size, _objects(file, each, size, outlined, leave_out)
            )
        )
    return AnnotatedImages(f"{root.resolve().name}/{part}", images, names, [file for file in files if file.is_file()])


def _objects(file: Path, lines: Sequence[_Line], size: tuple[int, int], outlined: bool, leave_out: bool) -> Objects:
    height, width = size
    boxes, labels, masks = [], [], []
    for number, (label, shares) in enumerate(lines, start=1):
        where = f"{file}: line {number}"
        if len(shares) == 4:
            x, y, w, h = shares
            edges = (x - w / 2, y - h / 2, x + w / 2, y + h / 2)
        else:
            edges = (min(shares[::2]), min(shares[1::2]), max(shares[::2]), max(shares[1::2]))
        pixels = tuple(share * side for share, side in zip(edges, (width, height) * 2, strict=True))
        box = usable_box(pixels, size, where, leave_out)
        if box is None:
            continue
        boxes.append(box)
        labels.append(label)
        if outlined:
            points = [share * (width, height)[place % 2] for place, share in enumerate(shares)]
            masks.append(run_lengths.of_polygons([points], size))
    if not boxes:
        return Objects.none(masks=outlined)
    edges_of_all = torch.tensor(boxes)
    return Objects(
        boxes=edges_of_all,
        labels=torch.tensor(labels),
        crowd=torch.zeros(len(boxes), dtype=torch.bool),
        areas=run_lengths.areas(masks) if outlined else (edges_of_all[:, 2:] - edges_of_all[:, :2]).prod(dim=1),
        masks=tuple(masks) if outlined else None,
    )


def _read(file: Path) -> list[_Line]:
    found: list[_Line] = []
    for number, line in enumerate(read_text(file).splitlines(), start=1):
        words = line.split()
        if not words:
            continue
        try:
            label, shares = int(words[0]), tuple(map(float, words[1:]))
        except ValueError:
            raise UserError(f"{file}: line {number} is {line[:80]!r}; it must be numbers only") from None
        if label < 0 or len(shares) < 4 or len(shares) == 5 or len(shares) % 2:
            raise UserError(
                f"{file}: line {number} has {len(words)} numbers; it must be a class and x y width height, or a class "
                "and the points of a polygon"
            )
        found.append((label, shares))
    return found


def _names(root: Path) -> list[str] | None:
    for file in (root / "data.yaml", root / "dataset.yaml"):
        if file.is_file():
            names = read_yaml(file).get("names")
            if isinstance(names, Mapping):
                return [str(names[number]) for number in sorted(names)]
            if isinstance(names, list):
                return [str(name) for name in names]
    file = root / "classes.txt"
    return [line.strip() for line in read_text(file).splitlines() if line.strip()] if file.is_file() else None


def _labels(images: Path) -> Path:
    """labels/… for images/…: the last folder called images is replaced."""
    parts = list(images.parts)
    place = len(parts) - 1 - parts[::-1].index("images")
    return Path(*parts[:place], "labels", *parts[place + 1 :])


def _size(path: Path) -> tuple[int, int]:
    """Height and width, from the header alone."""
    try:
        with opened(read_image_file(path, str(path)), str(path)) as image:
            return image.height, image.width
    except BadImage as error:
        raise UserError(f"cannot read the image {error}; its annotations are shares of its size") from None
