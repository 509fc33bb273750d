"""The output folder of a tool, and the names of the files in it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from asterism.errors import UserError
from asterism.images.pictures import Picture


def check_folder(path: Path, overwrite: bool) -> Path:
    """Refuse a path that must not be written to, before any work is done."""
    if path.exists() and not path.is_dir():
        raise UserError(f"{path} is a file; choose a folder for --out")
    if path.is_dir() and any(path.iterdir()) and not overwrite:
        raise UserError(f"{path} already exists; replace its files with --overwrite, or choose another --out")
    return path


def file_names(paths: Sequence[Path]) -> list[str]:
    """A name for the results of each file: without its extension, or with it where files differ in nothing else."""
    shared = Counter(path.stem for path in paths)
    return [path.stem if shared[path.stem] == 1 else path.name for path in paths]


def image_names(images: Sequence[Picture]) -> list[str]:
    """Unique names for the results of each image: the file's name without extension, or the image's number."""
    names: list[str] = []
    for number, image in enumerate(images):
        name = Path(image).stem if isinstance(image, str | os.PathLike) else f"image-{number}"
        while name in names:
            name += f"-{number}"
        names.append(name)
    return names
