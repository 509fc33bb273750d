"""Opening a source by path or name."""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from asterism.data.sources.catalog import SCENES, dataset_names
from asterism.data.sources.folder import NoImages, open_folder
from asterism.data.sources.named import open_named
from asterism.data.sources.shards import find_shards, is_tar, open_shards
from asterism.data.sources.source import Source
from asterism.data.sources.splits import EVERYTHING, UnknownSplit
from asterism.errors import UserError, unknown
from asterism.inputs import user_path
from asterism.plugins import plugins

_ARCHIVES = (".zip", ".gz", ".tgz", ".bz2", ".xz", ".zst", ".7z", ".rar")
_SCENE_SETTINGS = ("size", "count", "seed")


def open_source(path: str | os.PathLike[str], split: str | None = None, *, labels: bool | None = None) -> Source:
    """Open a source of images by path or name.

    `path` is a folder of images (with labels if its subfolders are classes), a tar file or a folder of tar files, the
    name of a well-known data set (`dataset_names`), or built-in scenes: `scenes`, `scenes:size=64,count=2000,seed=0`.
    An existing folder takes precedence over a data set of the same name; `scenes:` always means the built-in ones.

    `split` selects a part ("train", "val", "test", or "all"); by default, a divided set gives its training part.
    `labels`: True requires labels, False reads a folder without them, None follows the layout.
    """
    source = _open(os.fspath(path), split, labels)
    if labels and source.classes is None:
        raise UserError(f"{path} has no labels; give a folder with one subfolder per class, or shards with .cls files")
    return source


def open_everything(path: str) -> tuple[Source, str | None]:
    """All splits of the data as one source, and the name for all of them."""
    try:
        return open_source(path, EVERYTHING), EVERYTHING
    except UnknownSplit:
        return open_source(path), None


def _open(path: str, split: str | None, labels: bool | None) -> Source:
    place = user_path(path)
    if place.is_dir():
        return _open_directory(place, split, labels)
    if place.is_file():
        return _open_file(place, split)
    name, _, settings = path.partition(":")
    if name == SCENES:
        return _open_scenes(settings, split)
    if path in (added := plugins("datasets")):
        return added[path].load()(split)
    if path in dataset_names():
        return open_named(path, split)
    raise _nothing_there(path, place)


def _open_directory(place: Path, split: str | None, labels: bool | None) -> Source:
    try:
        return open_folder(place, split, labels=labels)
    except (NoImages, UnknownSplit):
        if not find_shards(place):
            raise
    except PermissionError as error:
        raise UserError(f"cannot read {error.filename}: no permission") from None
    return open_shards(place, split)


def _open_file(place: Path, split: str | None) -> Source:
    if is_tar(place):
        return open_shards(place, split)
    if place.suffix.lower() in _ARCHIVES:
        raise UserError(f"{place} is compressed, so it has no random access to images; unpack it and name the folder")
    raise UserError(f"{place} is a file; name a folder of images, or a .tar file in WebDataset's layout")


def scene_settings(settings: str, known: Sequence[str] = _SCENE_SETTINGS) -> dict[str, int]:
    """What follows `scenes:`, as arguments."""
    values: dict[str, int] = {}
    for setting in filter(None, settings.split(",")):
        name, _, value = (part.strip() for part in setting.partition("="))
        if name not in known:
            raise unknown("setting of scenes", name, known)
        if not value.isdigit():
            raise UserError(
                f"scenes: {name} = {value!r} must be a whole number, as in scenes:{known[0]}=64,{known[1]}=2000"
            )
        values[name] = int(value)
    return values


def _open_scenes(settings: str, split: str | None) -> Source:
    from asterism.data.sources.scenes import Scenes  # builds its shapes on import

    values: dict[str, Any] = dict(scene_settings(settings))
    return Scenes(**values, split=split or "train")


def _nothing_there(path: str, place: Path) -> UserError:
    if place.parent != Path() or place.suffix or path.startswith(("~", ".")):
        siblings = os.listdir(place.parent) if place.parent.is_dir() else []  # noqa: PTH208  (names alone)
        near = difflib.get_close_matches(place.name, siblings, n=1)
        hint = f"; did you mean {place.parent / near[0]}?" if near else ""
        return UserError(f"no such file or folder: {path}{hint}")
    names = [*dataset_names(), *(entry.name for entry in os.scandir() if entry.is_dir())]
    return UserError(f"{unknown('data set or folder', path, names)}")
