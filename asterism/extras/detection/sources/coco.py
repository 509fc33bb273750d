"""COCO's instance annotations: boxes, polygons or run lengths, crowd regions, categories in ascending order of id."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from asterism.data.sources import splits
from asterism.errors import UserError, reason_of
from asterism.extras.detection.sources import run_lengths
from asterism.extras.detection.sources.run_lengths import RunLengths
from asterism.extras.detection.sources.source import AnnotatedImage, AnnotatedImages, Objects, usable_box
from asterism.images.bad_image import BadImage
from asterism.images.limits import check_size
from asterism.inputs import read_json, read_text


def open_coco_file(
    path: Path, chosen: Sequence[str] | None = None, name: str | None = None, *, leave_out: bool = False
) -> AnnotatedImages:
    """The images of one annotation file, or those of them that are named. leave_out: flawed boxes are no error."""
    try:
        changed = path.stat().st_mtime_ns
    except OSError as error:
        raise UserError(f"cannot read {path}: {reason_of(error)}") from None
    return _opened(path, changed, None if chosen is None else tuple(chosen), name, leave_out)


@lru_cache(maxsize=2)
def _opened(
    path: Path, changed: int, chosen: tuple[str, ...] | None, name: str | None, leave_out: bool
) -> AnnotatedImages:
    """Remembered, because all of COCO takes a minute and a run opens its data several times."""
    content = _read(path)
    try:
        categories = sorted(content["categories"], key=lambda category: category["id"])
        numbers = {category["id"]: place for place, category in enumerate(categories)}
        names = [str(category["name"]) for category in categories]
        images = {image["id"]: image for image in content["images"]}
        found: dict[Any, list[Mapping[str, Any]]] = {}
        for annotation in content["annotations"]:
            if annotation["category_id"] not in numbers:
                raise UserError(
                    f"{path}: annotation {annotation.get('id')} has the unknown category {annotation['category_id']}; "
                    "add it to categories, or remove the annotation"
                )
            if annotation["image_id"] not in images:
                raise UserError(
                    f"{path}: annotation {annotation.get('id')} belongs to image {annotation['image_id']}, which is "
                    "not in images"
                )
            found.setdefault(annotation["image_id"], []).append(annotation)
        by_name = {str(image["file_name"]): image for image in images.values()}
        wanted = sorted(by_name) if chosen is None else list(chosen)
        missing = [each for each in wanted if each not in by_name]
        if missing:
            raise UserError(f"the list of images names {missing[0]}, which is not in {path}")
        root = _image_folder(path, wanted)
        masks = all(annotation.get("segmentation") for each in found.values() for annotation in each)
        made = [
            _annotated(path, root, by_name[each], found.get(by_name[each]["id"], ()), numbers, masks, leave_out)
            for each in wanted
        ]
    except (KeyError, TypeError, IndexError, AttributeError, ValueError, OverflowError) as error:
        raise UserError(f"{path} is not a COCO instance annotation file: {_flaw(error)}") from None
    if len(set(names)) < len(names):
        double = next(each for each in names if names.count(each) > 1)
        raise UserError(f"{path} has two categories with the name {double!r}; give each its own name")
    return AnnotatedImages(name or path.name, made, names, [path])


def coco_parts(root: Path) -> dict[str, tuple[Path, Path | None]]:
    """The parts of a folder in COCO's layout: annotation file, and the list of its images if one file is for all."""
    files = sorted((root / "annotations").glob("instances*.json"))
    lists = [file for file in sorted(root.glob("*.txt")) if splits.part(file.stem) is not None]
    if len(files) == 1 and lists:
        return {file.stem: (files[0], file) for file in lists}
    names = [file.stem.removeprefix("instances").strip("_").rstrip("0123456789") for file in files]
    return {name or splits.EVERYTHING: (file, None) for name, file in zip(names, files, strict=True)}


def open_coco_part(
    root: Path, part: str, annotations: Path, chosen: Path | None, *, leave_out: bool
) -> AnnotatedImages:
    names = None if chosen is None else read_text(chosen).split()
    return open_coco_file(annotations, names, f"{root.resolve().name}/{part}", leave_out=leave_out)


def _annotated(
    path: Path,
    root: Path,
    image: Mapping[str, Any],
    annotations: Sequence[Mapping[str, Any]],
    numbers: Mapping[Any, int],
    masks: bool,
    leave_out: bool,
) -> AnnotatedImage:
    name, size = str(image["file_name"]), (image["height"], image["width"])
    if not all(isinstance(side, int) for side in size):
        raise UserError(f"{path}: the image {name} has the size {size[1]}×{size[0]}, which is not in pixels")
    try:
        check_size(size[1], size[0], name)
    except BadImage as error:
        raise UserError(f"{path}: {error}") from None
    boxes, kept, encoded, areas = [], [], [], []
    for annotation in annotations:
        where = f"{path}: annotation {annotation.get('id')} of {name}"
        left, top, width, height = (float(value) for value in annotation["bbox"])
        box = usable_box((left, top, left + width, top + height), size, where, leave_out)
        if box is None:
            continue
        boxes.append(box)
        kept.append(annotation)
        if masks:
            encoded.append(_mask(annotation["segmentation"], size, where))
        areas.append(float(annotation.get("area", width * height)))
    if not kept:
        return AnnotatedImage(name, root / name, size, Objects.none(masks))
    objects = Objects(
        boxes=torch.tensor(boxes),
        labels=torch.tensor([numbers[annotation["category_id"]] for annotation in kept]),
        crowd=torch.tensor([bool(annotation.get("iscrowd")) for annotation in kept]),
        areas=torch.tensor(areas),
        masks=tuple(encoded) if masks else None,
    )
    return AnnotatedImage(name, root / name, size, objects)


def _mask(segmentation: Any, size: tuple[int, int], where: str) -> RunLengths:
    if isinstance(segmentation, Mapping):
        if tuple(segmentation["size"]) != size:
            raise UserError(
                f"{where} has a mask of {segmentation['size'][1]}×{segmentation['size'][0]} pixels, but its image has "
                f"{size[1]}×{size[0]}"
            )
        counts = segmentation["counts"]
        if isinstance(counts, str):
            counts = run_lengths.uncompressed(counts)
        if sum(counts) != size[0] * size[1] or min(counts) < 0:
            raise UserError(
                f"{where} has run lengths that do not add up to the {size[1]}×{size[0]} pixels of its image"
            )
        return run_lengths.of_counts(counts, size)
    outlines = [outline for outline in segmentation if len(outline) >= 6]
    if not outlines:
        raise UserError(f"{where} has a mask without a polygon of at least three points; correct or remove it")
    return run_lengths.of_polygons(outlines, size)


def _image_folder(path: Path, names: Sequence[str]) -> Path:
    """Where the images are: next to the file, or in COCO's layout."""
    if not names:
        return path.parent
    part = path.stem.removeprefix("instances").strip("_")
    here, above = path.parent, path.parent.parent
    places = [here, here / "images", above / "images", above, above / part, above / "images" / part, here / part]
    for place in places:
        if (place / names[0]).is_file():
            missing = [name for name in names if not (place / name).is_file()]
            if missing:
                raise UserError(f"{len(missing)} images of {path} are not in {place}, such as {missing[0]}")
            return place
    looked = ", ".join(str(place) for place in places[:3])
    raise UserError(f"{path} names the image {names[0]}, which is in none of {looked}; put the images there")


def _read(path: Path) -> dict[str, Any]:
    content = read_json(path)
    if not isinstance(content, dict):
        raise UserError(f"{path} holds a {type(content).__name__}; it must be a COCO instance annotation file")
    missing = [name for name in ("images", "annotations", "categories") if not isinstance(content.get(name), list)]
    if missing:
        raise UserError(f"{path} lacks {', '.join(missing)}; it must be a COCO instance annotation file")
    if not content["images"] or not content["annotations"]:
        raise UserError(
            f"{path} has no {'images' if not content['images'] else 'annotations'}; there is nothing to learn"
        )
    return content


def _flaw(error: Exception) -> str:
    return f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else reason_of(error)
