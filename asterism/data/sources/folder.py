"""Folders of images: any nesting, with the direct subfolders as classes if the layout suggests it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from asterism.data.sources import splits
from asterism.data.sources.listing import Listing, list_images
from asterism.data.sources.source import Sample
from asterism.errors import UserError
from asterism.images.decode import decode
from asterism.inputs import as_text, read_text

CLASSES_FILE = "classes.txt"


class NoImages(UserError):
    """A folder without images."""


class Folder:
    """The images below a folder. With `classes`, the direct subfolder that holds an image is its class."""

    def __init__(
        self,
        root: Path,
        listing: Listing,
        *,
        name: str,
        prefix: str = "",
        classes: list[str] | None,  # their folders
        level: int = 0,  # depth of the class folder in a path; 1 below split folders
        names: list[str] | None = None,  # of the classes, if they are not those of the folders
    ) -> None:
        self.root = root
        self.listing = listing
        self.name = name
        self.classes = names or classes
        self._prefix = prefix  # from the folder the user gave to the root, so that keys are relative to the former
        self._labels = None if classes is None else _labels(listing, classes, level)

    @cached_property
    def fingerprint(self) -> str:
        return self.listing.fingerprint()

    def __len__(self) -> int:
        return len(self.listing)

    def __getitem__(self, index: int) -> Sample:
        if not 0 <= index < len(self):
            raise IndexError(index)
        key = self.key(index)
        return Sample(decode(self.file(index), key), key, self.label(index))

    @property
    def empty_subfolders(self) -> list[str]:
        """Direct subfolders without an image, if they are why the others are not taken for classes."""
        filled = _top_folders(self.listing)
        others_are_classes = len(filled) >= 2 and b"" not in filled
        return sorted(map(as_text, _direct_subfolders(self.listing) - filled)) if others_are_classes else []

    def keys(self) -> list[str]:
        return [self.key(index) for index in range(len(self))]

    def files(self) -> Sequence[Path]:
        return _Files(self)

    def key(self, index: int) -> str:
        return self._prefix + as_text(self.listing.path(index))

    def label(self, index: int) -> int | None:
        return None if self._labels is None else int(self._labels[self.listing.folder(index)])

    def file(self, index: int) -> Path:
        return self.root / os.fsdecode(self.listing.path(index))


class _Files(Sequence[Path]):
    """The files of a folder, whose paths are made when they are asked for."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    def __len__(self) -> int:
        return len(self._folder)

    def __getitem__(self, index: int) -> Path:  # type: ignore[override]  # no slices
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self._folder.file(index)


def split_folder(root: Path, split: str | None) -> Path:
    """The folder to read. If no split is given, that is the training part of a folder with both training and held-out
    parts, and the whole of any other folder."""
    if split == splits.EVERYTHING:
        return root
    present = _split_folders(root)
    if split is None and not splits.divided(present):
        return root
    if split is not None and (root / split).is_dir():
        return root / split
    return root / splits.pick(split, present, str(root))


def open_folder(root: Path, split: str | None = None, *, labels: bool | None = None) -> Folder:
    """The images of a folder, or of one of its splits; an error if there are none.

    `labels`: True requires class subfolders, False ignores them. None uses them if there are at least two, all with
    images in them, and no images next to them. All splits of a divided folder together have labels if the folder of
    each split has them.
    """
    parts = _split_folders(root) if split == splits.EVERYTHING else []
    if splits.divided(parts):
        return _open_all_parts(root, parts, labels)
    folder = split_folder(root, split)
    listing = list_images(folder)
    if not len(listing):
        raise NoImages(_no_images(folder, listing))
    prefix = f"{folder.name}/" if folder != root else ""
    name = f"{root.resolve().name}/{folder.name}" if prefix else root.resolve().name
    labelled = labels if labels is not None else _looks_labelled(listing)
    classes = _classes(root, folder, listing, labelled)
    return Folder(folder, listing, name=name, prefix=prefix, classes=classes, names=_names(root, classes))


def _open_all_parts(root: Path, parts: list[str], labels: bool | None) -> Folder:
    """All images of a divided folder, regardless of split."""
    listing = list_images(root)
    if not len(listing):
        raise NoImages(_no_images(root, listing))
    folders = [as_text(listing.folders[i]).split("/") for i in range(len(listing.folders))]
    in_classes = all(len(path) > 1 and path[0] in parts for path in folders)
    if labels and not in_classes:
        raise UserError(f"labels were requested, but {root} has images outside SPLIT/CLASS/; read it without labels")
    found = sorted({path[1] for path in folders}) if in_classes and labels is not False else []
    classes = found if labels or len(found) > 1 else None
    name = f"{root.resolve().name}/{splits.EVERYTHING}"
    return Folder(root, listing, name=name, classes=classes, level=1, names=_names(root, classes))


def _split_folders(root: Path) -> list[str]:
    """Direct subfolders named after a split. Each name is tested, since listing a folder of a million files is slow."""
    spellings = (spelling for name in splits.NAMES for spelling in (name, name.capitalize(), name.upper()))
    found: dict[tuple[int, int], str] = {}
    for spelling in spellings:
        if (root / spelling).is_dir():  # a file system may find the same folder under all three spellings
            status = (root / spelling).stat()
            found.setdefault((status.st_dev, status.st_ino), spelling)
    return list(found.values())


def _looks_labelled(listing: Listing) -> bool:
    direct = _direct_subfolders(listing)
    return len(direct) >= 2 and direct == _top_folders(listing)


def _direct_subfolders(listing: Listing) -> set[bytes]:
    visited = (listing.visited[i] for i in range(len(listing.visited)))
    return {folder for folder in visited if folder and b"/" not in folder}


def _top_folders(listing: Listing) -> set[bytes]:
    return {listing.folders[i].partition(b"/")[0] for i in range(len(listing.folders))}


def _classes(root: Path, folder: Path, listing: Listing, labelled: bool) -> list[str] | None:
    """Subfolders in sorted order. A held-out part is numbered like the training part, even if it lacks some classes."""
    if not labelled:
        return None
    own = {as_text(name) for name in _top_folders(listing)}
    if "" in own:
        raise UserError(
            f"labels were requested, but {folder} has images outside class subfolders, such as "
            f"{as_text(listing.path(0))}; put every image into the subfolder of its class, or read it without labels"
        )
    training = [name for name in _split_folders(root) if splits.part(name) == "train"] if folder != root else []
    known = _subfolders(root / training[0]) if training else set()
    return [*sorted(known), *sorted(own - known)]


def _names(root: Path, classes: list[str] | None) -> list[str] | None:
    """The names in `classes.txt`, here or next to this folder, if it has a line `folder<tab>name` for every class.

    A name that several folders have is followed by that of the folder.
    """
    for file in (root / CLASSES_FILE, root.resolve().parent / CLASSES_FILE):
        if not classes or not file.is_file():
            continue
        pairs = (line.partition("\t")[::2] for line in read_text(file).splitlines())
        known = {folder.strip(): name.strip() for folder, name in pairs if name.strip()}
        if all(folder in known for folder in classes):
            shared = Counter(known[folder] for folder in classes)
            names = ((folder, known[folder]) for folder in classes)
            return [name if shared[name] == 1 else f"{name} ({folder})" for folder, name in names]
    return None


def _subfolders(folder: Path) -> set[str]:
    with os.scandir(folder) as entries:
        return {as_text(e.name) for e in entries if not e.name.startswith(".") and e.is_dir()}


def _labels(listing: Listing, classes: list[str], level: int) -> NDArray[np.int64]:
    """The label of each folder of the listing."""
    number = {name: label for label, name in enumerate(classes)}
    folders = listing.folders
    return np.array([number[as_text(folders[i].split(b"/")[level])] for i in range(len(folders))], dtype=np.int64)


def _no_images(folder: Path, listing: Listing) -> str:
    count, example = listing.others
    if count:
        return (
            f"no images in {folder}: none of its {count} files, such as {example!r}, has an image extension "
            "(.jpg, .png, .webp, .tif, .bmp, .gif, …)"
        )
    return f"no images in {folder}: the folder is empty"
