"""Folders of segmented images in their published layouts, recognised by their contents.

CamVid      train/ trainannot/ …; label 11 is void. A data set without that label is not CamVid but the user's own
VOC         JPEGImages/ SegmentationClass/ ImageSets/Segmentation/train.txt …, also below VOCdevkit/VOC*; trainaug
            has its masks in SegmentationClassAug/
Context     VOC's JPEGImages/ with SegmentationClassContext/ and ImageSets/SegmentationContext/ (Pascal Context,
            as mmsegmentation writes it), also below VOCdevkit/VOC2010
ADE20K      images/training/ annotations/training/ …; label 0 is void
Cityscapes  leftImg8bit/train/<city>/ gtFine/train/<city>/ …; 19 of the 34 labels count
COCO-Stuff  images/train2017/ annotations/train2017/*.png …
COCO        annotations/instances*.json with images/ (and train.txt, val.txt) or train2017/ val2017/
own         images/ masks/, also inside train/ val/ test/, or with these inside images/ and masks/; or images with masks
            of the same names next to them. Classes are the values found, or those in classes.txt
scenes      built in
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from asterism.data.sources import splits
from asterism.data.sources.catalog import SCENES
from asterism.data.sources.coco import CocoMasks
from asterism.data.sources.coco_stuff import coco_stuff
from asterism.data.sources.open import open_source
from asterism.data.sources.own_masks import CLASSES_FILE, OwnClasses, class_names, own_classes, paired
from asterism.data.sources.segmented import (
    Item,
    Segmented,
    SegmentedScenes,
    SegmentedSource,
    check_item,
    identity_labels,
)
from asterism.errors import UserError
from asterism.images.decode import SUFFIXES
from asterism.images.masks import VOID, read_values
from asterism.inputs import read_text, user_path

_CAMVID = (
    "sky", "building", "pole", "road", "pavement", "tree", "sign", "fence", "car", "pedestrian", "bicyclist",
)  # fmt: skip
_VOC = (
    "background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "dining table",
    "dog", "horse", "motorbike", "person", "potted plant", "sheep", "sofa", "train", "tv monitor",
)  # fmt: skip
_CITYSCAPES = {  # by label in *_labelIds.png
    7: "road", 8: "sidewalk", 11: "building", 12: "wall", 13: "fence", 17: "pole", 19: "traffic light",
    20: "traffic sign", 21: "vegetation", 22: "terrain", 23: "sky", 24: "person", 25: "rider", 26: "car", 27: "truck",
    28: "bus", 31: "train", 32: "motorcycle", 33: "bicycle",
}  # fmt: skip
_CITYSCAPES_LABELS = 34
_ADE20K_CLASSES = 150
_ADE20K_NAMES = "objectInfo150.txt"
_VOC_LISTS = Path("ImageSets") / "Segmentation"
_CONTEXT_LISTS = Path("ImageSets") / "SegmentationContext"
_CONTEXT = (
    "background", "aeroplane", "bag", "bed", "bedclothes", "bench", "bicycle", "bird", "boat", "book", "bottle",
    "building", "bus", "cabinet", "car", "cat", "ceiling", "chair", "cloth", "computer", "cow", "cup", "curtain", "dog",
    "door", "fence", "floor", "flower", "food", "grass", "ground", "horse", "keyboard", "light", "motorbike",
    "mountain", "mouse", "person", "plate", "platform", "potted plant", "road", "rock", "sheep", "shelves", "sidewalk",
    "sign", "sky", "snow", "sofa", "table", "track", "train", "tree", "truck", "tv monitor", "wall", "water", "window",
    "wood",
)  # fmt: skip

Opener = Callable[[], SegmentedSource]


def open_segmented(path: str | os.PathLike[str], split: str | None = None) -> SegmentedSource:
    """The images of one part, with a class for every pixel; by default the training part."""
    text = os.fspath(path)
    if text.partition(":")[0] == SCENES and not Path(text).is_dir():
        return SegmentedScenes(open_source(text, split))
    root = user_path(text)
    if not root.is_dir():
        raise UserError(f"no such folder: {root}")
    parts = _parts(root)
    if not parts:
        raise UserError(
            f"{root} has no masks in a known layout; give images/NAME.jpg with masks/NAME.png, or lay it out as "
            "CamVid (train/ and trainannot/), Pascal VOC, Pascal Context, ADE20K, Cityscapes, COCO-Stuff or COCO "
            "(annotations/instances*.json), or use scenes"
        )
    return parts[splits.pick(_plain(split, parts), parts, str(root))]()


def _plain(split: str | None, parts: Mapping[str, Opener]) -> str | None:
    """The split to open: by default the only part, if there is just one."""
    return next(iter(parts)) if split is None and len(parts) == 1 else split


def _parts(root: Path) -> dict[str, Opener]:
    """Openers of the parts that have masks, by name."""
    for layout in (_camvid, _pascal_context, _voc, _ade20k, _cityscapes, coco_stuff, _coco, _own):
        if parts := layout(root):
            return parts
    return {}


def _camvid(root: Path) -> dict[str, Opener]:
    names = _annotated(root)
    if not _has_void_of_camvid(root, names):
        return {}
    labels = np.append(identity_labels(len(_CAMVID)), np.uint8(VOID))

    def opener(name: str) -> Opener:
        return lambda: Segmented(
            f"{root.resolve().name}/{name}", _paired(root, root / name, root / f"{name}annot"), _CAMVID, labels
        )

    return {name: opener(name) for name in names}


def _has_void_of_camvid(root: Path, names: list[str]) -> bool:
    """Whether any mask contains the label after the last class; nearly all masks of CamVid do."""
    if (root / CLASSES_FILE).is_file():
        return False
    files = (path for name in names for path in sorted((root / f"{name}annot").iterdir()))
    masks = (path for path in files if path.suffix.lower() in SUFFIXES)
    return any(bool((read_values(path)[0] == len(_CAMVID)).any()) for path in masks)


def _pascal_context(root: Path) -> dict[str, Opener]:
    """Label 0 is the background, which counts as a class."""
    places = (root, root / "VOCdevkit" / "VOC2010")
    return _listed(places, _CONTEXT_LISTS, lambda _: "SegmentationClassContext", _CONTEXT, "pascal-context")


def _voc(root: Path) -> dict[str, Opener]:
    years = sorted((root / "VOCdevkit").glob("VOC*"), reverse=True)
    masks = {True: "SegmentationClassAug", False: "SegmentationClass"}
    return _listed((root, *years), _VOC_LISTS, lambda part: masks[part.endswith("aug")], _VOC)


def _listed(
    places: Iterable[Path],
    lists: Path,
    masks: Callable[[str], str],  # their folder, by the name of the part
    classes: Sequence[str],
    title: str | None = None,  # None: that of the folder
) -> dict[str, Opener]:
    """The parts whose images are listed in files, in the first of these places that has such lists."""
    home = next((place for place in places if (place / lists).is_dir()), None)
    if home is None:
        return {}

    def opener(name: str) -> Opener:
        def items() -> list[Item]:
            keys = read_text(home / lists / f"{name}.txt").split()
            images, own = home / "JPEGImages", home / masks(name)
            return [check_item(Item(key, images / f"{key}.jpg", own / f"{key}.png")) for key in keys]

        shown = f"{title or home.resolve().name}/{name}"
        return lambda: Segmented(shown, items(), classes, identity_labels(len(classes)))

    return {file.stem: opener(file.stem) for file in sorted((home / lists).glob("*.txt"))}


def _ade20k(root: Path) -> dict[str, Opener]:
    names = [
        folder.name
        for folder in _folders(root / "images")
        if (root / "annotations" / folder.name).is_dir() and splits.part(folder.name) is not None
    ]
    labels = np.concatenate([[np.uint8(VOID)], identity_labels(_ADE20K_CLASSES)])

    def opener(name: str) -> Opener:
        return lambda: Segmented(
            f"{root.resolve().name}/{name}",
            _paired(root, root / "images" / name, root / "annotations" / name),
            _ade20k_names(root),
            labels,
        )

    return {name: opener(name) for name in names}


def _ade20k_names(root: Path) -> list[str]:
    """Names from the table that comes with the data set (its last column), or else numbers."""
    table = root / _ADE20K_NAMES
    lines = read_text(table).splitlines()[1:] if table.is_file() else []
    names = [line.split("\t")[-1].strip() for line in lines if line.strip()]
    return names if len(names) == _ADE20K_CLASSES else [str(1 + number) for number in range(_ADE20K_CLASSES)]


def _cityscapes(root: Path) -> dict[str, Opener]:
    names = [folder.name for folder in _folders(root / "leftImg8bit") if (root / "gtFine" / folder.name).is_dir()]
    labels = np.full(_CITYSCAPES_LABELS, VOID, dtype=np.uint8)
    labels[list(_CITYSCAPES)] = np.arange(len(_CITYSCAPES))

    def opener(name: str) -> Opener:
        def items() -> list[Item]:
            found = []
            for image in sorted((root / "leftImg8bit" / name).glob("*/*_leftImg8bit.*")):
                stem = image.stem.removesuffix("_leftImg8bit")
                mask = root / "gtFine" / name / image.parent.name / f"{stem}_gtFine_labelIds.png"
                found.append(check_item(Item(image.relative_to(root).as_posix(), image, mask)))
            return found

        return lambda: Segmented(f"{root.resolve().name}/{name}", items(), list(_CITYSCAPES.values()), labels)

    return {name: opener(name) for name in names}


def _coco(root: Path) -> dict[str, Opener]:
    """One annotation file per part (instances_train2017.json), or one file and lists of file names."""
    files = sorted((root / "annotations").glob("instances*.json"))
    if len(files) == 1 and (lists := [f for f in sorted(root.glob("*.txt")) if splits.part(f.stem) is not None]):
        return {file.stem: _coco_opener(root, files[0], file.stem, file) for file in lists}
    return {_coco_part(file): _coco_opener(root, file, _coco_part(file), None) for file in files}


def _coco_part(file: Path) -> str:
    """`instances_val2017.json` is the part val; a plain `instances.json` is the whole set."""
    return file.stem.removeprefix("instances").strip("_").rstrip("0123456789") or splits.EVERYTHING


def _coco_opener(root: Path, annotations: Path, part: str, chosen: Path | None) -> Opener:
    def open_part() -> SegmentedSource:
        masks = CocoMasks(annotations)
        names = sorted(masks.images) if chosen is None else read_text(chosen).split()
        year = annotations.stem.removeprefix("instances").strip("_")
        places = [root / name for name in (year, f"images/{year}", "images") if name]
        folder = next((place for place in places if place.is_dir()), root / "images")
        items = []
        for name in names:
            if name not in masks.images:
                raise UserError(f"{chosen} names {name}, which is not in {annotations}")
            items.append(check_item(Item(name, folder / name, masks.images[name])))
        labels = identity_labels(len(masks.classes))
        return Segmented(f"{root.resolve().name}/{part}", items, masks.classes, labels, masks, annotations)

    return open_part


def _own(root: Path) -> dict[str, Opener]:
    """User-made folders of images and masks, by part. All parts share the classes found in all masks."""
    parts = {name: found for name, found in _own_items(root).items() if found}
    if not parts:
        return {}

    def opener(name: str) -> Opener:
        def open_part() -> SegmentedSource:
            masks = (item.mask for items in parts.values() for item in items)
            classes = _classes_of(root, tuple(mask for mask in masks if isinstance(mask, Path)))
            title = root.resolve().name if name == splits.EVERYTHING else f"{root.resolve().name}/{name}"
            return Segmented(title, parts[name], classes.names, identity_labels(len(classes.names)), read=classes)

        return open_part

    return {name: opener(name) for name in parts}


def _own_items(root: Path) -> dict[str, list[Item]]:
    """The images of each part with their masks."""
    for layout in ("{name}/images {name}/masks", "images/{name} masks/{name}"):
        places = {name: [root / part for part in layout.format(name=name).split(" ")] for name in splits.NAMES}
        if any(images.is_dir() and masks.is_dir() for images, masks in places.values()):
            return {name: _items(root, *place) for name, place in places.items() if all(map(Path.is_dir, place))}
    if parts := _annotated(root):
        return {name: _paired(root, root / name, root / f"{name}annot") for name in parts}
    if (root / "images").is_dir() and (root / "masks").is_dir():
        return {splits.EVERYTHING: _items(root, root / "images", root / "masks")}
    return {splits.EVERYTHING: _items(root, root, root)}


def _items(root: Path, images: Path, masks: Path) -> list[Item]:
    return [Item(image.relative_to(root).as_posix(), image, mask) for image, mask in paired(images, masks)]


def _annotated(root: Path) -> list[str]:
    """The parts in CamVid's layout."""
    return [name for name in splits.NAMES if (root / name).is_dir() and (root / f"{name}annot").is_dir()]


def _classes_of(root: Path, masks: tuple[Path, ...]) -> OwnClasses:
    states = tuple(path.stat().st_mtime_ns for path in masks)
    return _remembered_classes(masks, states, class_names(root))


@lru_cache(maxsize=8)
def _remembered_classes(masks: tuple[Path, ...], states: tuple[int, ...], names: tuple[str, ...] | None) -> OwnClasses:
    """Cached, so that every mask is read once for the training and test parts together."""
    return own_classes(masks, names)


def _paired(root: Path, images: Path, masks: Path) -> list[Item]:
    """Every image of a folder with the mask of the same name."""
    known = {file.stem: file for file in masks.iterdir() if file.suffix.lower() in SUFFIXES}
    found = sorted(file for file in images.iterdir() if file.suffix.lower() in SUFFIXES)
    without = [file.name for file in found if file.stem not in known]
    if without:
        raise UserError(f"{len(without)} images of {images} have no mask in {masks}, such as {without[0]}")
    return [Item(file.relative_to(root).as_posix(), file, known[file.stem]) for file in found]


def _folders(place: Path) -> list[Path]:
    return sorted(entry for entry in place.iterdir() if entry.is_dir()) if place.is_dir() else []
