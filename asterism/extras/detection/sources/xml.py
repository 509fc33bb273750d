"""XML annotations of Pascal VOC and ILSVRC: one file per image, with the box of each object.

Their coordinates count pixels from 1 and include the last column and row, so a box is [xmin - 1, ymin - 1, xmax, ymax].
ILSVRC's do so too, except that some begin at 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import torch

from asterism.errors import UserError, reason_of
from asterism.extras.detection.sources.source import AnnotatedImage, AnnotatedImages, Objects, usable_box
from asterism.images.decode import SUFFIXES
from asterism.inputs import read_text

_LARGEST = 16 << 20  # bytes of one annotation
VOC_CLASSES = [
    *("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow"),
    *("diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
]


def voc_parts(root: Path) -> dict[str, Path]:
    """The lists of images in ImageSets/Main, such as train, val, trainval and test; lists of one class are left out."""
    lists = sorted((root / "ImageSets" / "Main").glob("*.txt"))
    return {file.stem: file for file in lists if "_" not in file.stem}


def open_voc(root: Path, part: str, chosen: Path, *, leave_out: bool) -> AnnotatedImages:
    """A part of a folder in VOC's layout: JPEGImages, Annotations, ImageSets/Main."""
    names = [line.split()[0] for line in read_text(chosen).splitlines() if line.strip()]
    pairs = [(name, root / "JPEGImages", root / "Annotations" / f"{name}.xml") for name in names]
    return _opened(f"{root.resolve().name}/{part}", pairs, root, VOC_CLASSES, leave_out)


def ilsvrc_parts(root: Path) -> dict[str, Path]:
    """The folders of annotations below Annotations/CLS-LOC or Annotations/DET."""
    kinds = [root / "Annotations" / kind for kind in ("CLS-LOC", "DET")]
    return {
        folder.name: folder for kind in kinds if kind.is_dir() for folder in sorted(kind.iterdir()) if folder.is_dir()
    }


def open_ilsvrc(root: Path, part: str, folder: Path, *, leave_out: bool) -> AnnotatedImages:
    """A part of ILSVRC; images are below Data, in the folder of the same name."""
    files = sorted(folder.rglob("*.xml"))
    kind = folder.relative_to(root / "Annotations")
    pairs = []
    for file in files:
        place = file.parent.relative_to(folder)
        pairs.append((file.stem, root / "Data" / kind / place, file))
    return _opened(f"{root.resolve().name}/{part}", pairs, root, None, leave_out)


def _opened(
    name: str, pairs: Iterable[tuple[str, Path, Path]], root: Path, usual: Sequence[str] | None, leave_out: bool
) -> AnnotatedImages:
    """pairs: stem of an image, its folder, its annotation. usual: the class names, if all names are among them."""
    read = [(_image(folder, stem, file), file, _objects(file)) for stem, folder, file in pairs]
    found = sorted({label for _, _, (_, objects) in read for label, _ in objects})
    classes = list(usual) if usual is not None and set(found) <= set(usual) else found
    numbers = {label: place for place, label in enumerate(classes)}
    images = []
    for path, file, (size, objects) in read:
        checked = [
            (label, usable_box(box, size, f"{file}: an object of class {label}", leave_out)) for label, box in objects
        ]
        boxes = [box for _, box in checked if box is not None]
        made = Objects.none(masks=False)
        if boxes:
            edges = torch.tensor(boxes)
            made = Objects(
                boxes=edges,
                labels=torch.tensor([numbers[label] for label, box in checked if box is not None]),
                crowd=torch.zeros(len(boxes), dtype=torch.bool),
                areas=(edges[:, 2:] - edges[:, :2]).prod(dim=1),
                masks=None,
            )
        images.append(AnnotatedImage(path.relative_to(root).as_posix(), path, size, made))
    return AnnotatedImages(name, images, classes, [file for _, file, _ in read])


def _objects(file: Path) -> tuple[tuple[int, int] | None, list[tuple[str, tuple[float, ...]]]]:
    """Height and width, if stated, and class and box of each object."""
    text = read_text(file, _LARGEST)
    if re.search(r"<!(DOCTYPE|ENTITY)", text):
        raise UserError(f"{file} declares XML entities, which annotations do not need; remove the declaration")
    try:
        tree = ElementTree.fromstring(text)
        size = tree.find("size")
        stated = None if size is None else (_number(size, "height"), _number(size, "width"))
        objects: list[tuple[str, tuple[float, ...]]] = []
        for each in tree.iter("object"):
            box = each.find("bndbox")
            label = each.findtext("name")
            if box is None or not label:
                raise ValueError("an object without name or bndbox")
            left, top, right, bottom = (_number(box, side) for side in ("xmin", "ymin", "xmax", "ymax"))
            objects.append((label.strip(), (left - 1, top - 1, right, bottom)))
    except (ElementTree.ParseError, ValueError, TypeError) as error:
        raise UserError(f"{file} is not an XML annotation of objects: {reason_of(error)}") from None
    pixels = None if stated is None or 0 in stated else (int(stated[0]), int(stated[1]))
    return pixels, objects


def _number(element: Any, name: str) -> float:
    text = element.findtext(name)
    if text is None:
        raise ValueError(f"{name} is missing")
    return float(text)


def _image(folder: Path, stem: str, annotation: Path) -> Path:
    if not annotation.is_file():
        raise UserError(f"the annotation {annotation} is missing; every image of the list needs one")
    for suffix in (".jpg", ".JPEG", *sorted(SUFFIXES)):
        if (folder / f"{stem}{suffix}").is_file():
            return folder / f"{stem}{suffix}"
    raise UserError(f"the image of {annotation} is missing: there is no {stem} in {folder}")
