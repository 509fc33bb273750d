"""Well-known data sets by name, through torchvision's loaders.

They are stored in $ASTERISM_DATASETS, by default in the user's cache, one folder each, and downloaded when needed.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asterism.data.sources import splits
from asterism.data.sources.catalog import IMAGENET, NAMED
from asterism.data.sources.derived import Joined
from asterism.data.sources.folder import Folder, open_folder
from asterism.data.sources.index_cache import user_cache
from asterism.data.sources.source import Sample
from asterism.errors import UserError
from asterism.files import locked
from asterism.images.bad_image import BadImage
from asterism.images.decode import from_pillow
from asterism.inputs import user_path


class Named:
    """A data set by name. `data` is torchvision's data set, stored in `place`; it returns Pillow images."""

    def __init__(self, name: str, data: Any, place: Path) -> None:
        self.name = name
        self._data = data
        self._place = place
        self._labels = _labels(data)
        self.classes = None if self._labels is None else _class_names(data, self._labels)

    @cached_property
    def fingerprint(self) -> str:
        labels = b"" if self._labels is None else self._labels.astype("<i8").tobytes()
        return hashlib.blake2b(f"{self.name} {len(self)} ".encode() + labels, digest_size=8).hexdigest()

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> Sample:
        if not 0 <= index < len(self):
            raise IndexError(index)
        key = str(index)
        try:
            pixels = from_pillow(self._data[index][0], key)
        except (OSError, SyntaxError, ValueError) as error:
            raise BadImage(key, f"the image cannot be decoded: {error}") from None
        return Sample(pixels, key, self.label(index))

    def label(self, index: int) -> int | None:
        return None if self._labels is None else int(self._labels[index])

    def keys(self) -> list[str]:
        return [str(index) for index in range(len(self))]

    def files(self) -> list[Path]:
        """All files in the data set's folder: torchvision does not report which ones it reads."""
        return sorted(file for file in self._place.rglob("*") if file.is_file())


def open_named(name: str, split: str | None = None) -> Named | Folder | Joined:
    """A data set of `NAMED`, downloaded if missing, or ImageNet from its folder."""
    place = datasets_folder() / name
    if name == IMAGENET:
        return _open_imagenet(place, split)
    parts = NAMED[name].parts
    if split == splits.EVERYTHING and len(parts) > 1:
        return Joined(f"{name}/{splits.EVERYTHING}", {part: open_named(name, part) for part in parts})
    if split == splits.TRAIN_AND_VALIDATION and {"train", "val"} <= parts.keys():
        return Joined(f"{name}/{split}", {part: open_named(name, part) for part in ("train", "val")})
    whole = list(parts) == [splits.EVERYTHING] and split in (None, splits.EVERYTHING)
    chosen = splits.EVERYTHING if whole else splits.pick(split, parts, name)
    return Named(name if whole else f"{name}/{chosen}", _load(name, parts[chosen], place), place)


def datasets_folder() -> Path:
    given = os.environ.get("ASTERISM_DATASETS")
    return user_path(given) if given else user_cache() / "datasets"


def _open_imagenet(place: Path, split: str | None) -> Folder:
    if not place.is_dir():
        raise UserError(
            f"ImageNet is not in {place}, and its licence does not allow automatic download: get it from "
            "image-net.org, unpack it into train/<class>/ and val/<class>/, and name that folder "
            "(or link it to that place)"
        )
    return open_folder(place, split)


def _load(name: str, arguments: dict[str, Any], place: Path) -> Any:
    kind = getattr(importlib.import_module("torchvision.datasets"), NAMED[name].loader)
    try:
        with contextlib.suppress(RuntimeError, OSError):  # not downloaded yet
            return kind(root=place, download=False, **arguments)
        place.mkdir(parents=True, exist_ok=True)
        with locked(place.parent / f".{place.name}.lock"):
            return kind(root=place, download=True, **arguments)
    except ImportError as error:
        raise UserError(f"{name} needs the package {error.name!r}: pip install {error.name}") from None
    except (RuntimeError, OSError) as error:
        with contextlib.suppress(OSError):
            place.rmdir()  # if nothing was downloaded
        raise UserError(
            f"{name} is not in {place} and could not be downloaded ({error}). Connect to a network; or download it "
            f"elsewhere with torchvision's {NAMED[name].loader} and copy its folder there; or set "
            "ASTERISM_DATASETS to the folder that holds your data sets"
        ) from None


def _labels(data: Any) -> NDArray[np.int64] | None:
    """Labels, read without decoding an image; torchvision stores them under several names."""
    for attribute in ("targets", "labels", "_labels"):
        if hasattr(data, attribute):
            labels = np.array([int(label) for label in getattr(data, attribute)], dtype=np.int64)
            break
    else:
        labels = np.array([label for _, label in data._samples], dtype=np.int64)
    return None if (labels < 0).any() else labels  # STL-10 marks its unlabelled images with -1


def _class_names(data: Any, labels: NDArray[np.int64]) -> list[str]:
    names = getattr(data, "classes", None)
    if names is None:
        return [str(number) for number in range(int(labels.max()) + 1)]
    return [name if isinstance(name, str) else ", ".join(name) for name in names]
