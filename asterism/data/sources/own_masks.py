"""User-made masks: which mask belongs to which image, and which classes the masks contain.

Images are images/NAME.jpg with masks/NAME.png, or NAME.jpg next to NAME.png in one folder. Masks are palette or grey
images with a class number at every pixel, 0 for the background, 255 for void (unless 0 and 255 are the only values:
then 255 is the object), or colour images with one colour per class, black for the background. `classes.txt` names the
class numbers, one per line from 0 on; without it, the classes are the values found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from asterism.errors import UserError
from asterism.images.decode import SUFFIXES
from asterism.images.masks import VOID, read_values
from asterism.inputs import read_text

CLASSES_FILE = "classes.txt"


def find_pairs(folder: Path) -> list[tuple[Path, Path]]:
    """Images of a folder and their masks; images without a mask are left out."""
    if not folder.is_dir():
        raise UserError(f"no such folder of examples: {folder}")
    apart = (folder / "images").is_dir() and (folder / "masks").is_dir()
    images, masks = (folder / "images", folder / "masks") if apart else (folder, folder)
    pairs = paired(images, masks)
    if not pairs:
        raise UserError(
            f"{folder} has no image with a mask: give images/NAME.jpg with masks/NAME.png, or NAME.jpg next to NAME.png"
        )
    return pairs


def paired(images: Path, masks: Path) -> list[tuple[Path, Path]]:
    """Images with the masks of the same names. If both are in one folder, PNG files are the masks."""
    found = {path.stem: path for path in sorted(masks.glob("*.png"))}
    pictures = [
        path
        for path in sorted(images.iterdir())
        if path.suffix.lower() in SUFFIXES and (images != masks or path.suffix.lower() != ".png")
    ]
    pairs = [(path, found[path.stem]) for path in pictures if path.stem in found]
    images_of: dict[Path, Path] = {}
    for image, mask in pairs:
        if images_of.setdefault(mask, image) != image:
            raise UserError(
                f"{mask} may be the mask of {images_of[mask].name} or of {image.name}; give each image its own name"
            )
    return pairs


@dataclass(frozen=True)
class OwnClasses:
    """The classes of a set of masks. Called with a mask's path, it returns positions in `values`, or `VOID`."""

    values: tuple[int, ...]  # as stored, ascending; colours as 0xRRGGBB
    numbers: tuple[
        int, ...
    ]  # shown to the user: the values, but colours by rank, and 1 for white in a mask of 0 and 255
    names: tuple[str, ...]
    in_colour: bool

    def __call__(self, path: Path) -> NDArray[np.integer]:
        raw, in_colour = read_values(path)
        if in_colour != self.in_colour:
            raise UserError(
                f"the mask {path} is {_kind(in_colour)}, but the others are not; use one kind for all masks"
            )
        known = np.array(self.values)
        places = np.searchsorted(known, raw).clip(max=len(known) - 1)
        other = known[places] != raw
        void = other & (raw == VOID) & (not in_colour)
        if (other & ~void).any():
            raise UserError(
                f"the mask {path} holds the value {int(raw[other & ~void][0])}; the classes are {list(self.values)}: "
                f"change the mask, or name all classes in {CLASSES_FILE}"
            )
        return np.where(void, VOID, places)


def own_classes(masks: Sequence[Path], names: Sequence[str] | None = None) -> OwnClasses:
    """The classes found in all of these masks, with names for the numbers 0, 1, … if given."""
    found: set[int] = set()
    kinds: dict[bool, Path] = {}
    for path in masks:
        raw, in_colour = read_values(path)
        kinds.setdefault(in_colour, path)
        found |= set(np.unique(raw).tolist())
        if len(kinds) == 2:
            raise UserError(
                f"the mask {kinds[False]} is {_kind(False)}, but {kinds[True]} is {_kind(True)}; use one kind"
            )
        if len(found) > VOID:
            raise UserError(
                f"the masks up to {path} have {len(found)} different values, more than {VOID}: they look smoothed or "
                "compressed. Save them as PNG without anti-aliasing, one value or colour per class"
            )
    return _of_colours(found, names) if True in kinds else _of_numbers(found, names)


def class_names(root: Path) -> tuple[str, ...] | None:
    """The lines of `classes.txt`, if it exists."""
    file = root / CLASSES_FILE
    if not file.is_file():
        return None
    return tuple(line.strip() for line in read_text(file).splitlines() if line.strip())


def _of_colours(found: set[int], names: Sequence[str] | None) -> OwnClasses:
    if names is not None:
        raise UserError(
            f"{CLASSES_FILE} names the numbers of index masks, but these masks are colour images; remove it"
        )
    values = tuple(sorted({0, *found}))
    titles = ["background", *(f"#{value:06x}" for value in values[1:])]
    return OwnClasses(values, tuple(range(len(values))), tuple(titles), in_colour=True)


def _of_numbers(found: set[int], names: Sequence[str] | None) -> OwnClasses:
    white = found <= {0, VOID}
    values = sorted(found) if white else sorted(found - {VOID})
    if values and values[-1] > VOID:
        raise UserError(f"the masks hold the value {values[-1]}; number classes from 0 to {VOID - 1}")
    numbers = [1 if white and value == VOID else value for value in values]
    if names is None:
        named = ["background" if number == 0 else str(number) for number in numbers]
        return OwnClasses(tuple(values), tuple(numbers), tuple(named), in_colour=False)
    if (numbers and numbers[-1] >= len(names)) or len(names) > VOID:
        most = f"masks hold the number {numbers[-1]}" if len(names) <= VOID else f"at most {VOID} are supported"
        raise UserError(f"{CLASSES_FILE} names {len(names)} classes, but {most}")
    every = tuple(range(len(names)))
    return OwnClasses((0, VOID) if white and len(names) == 2 else every, every, tuple(names), in_colour=False)


def _kind(in_colour: bool) -> str:
    return "a colour image" if in_colour else "an index image"
