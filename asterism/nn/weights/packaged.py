"""The models in the package: small encoders of our own, which need no download.

`asterism/pretrained/index.json` has a line about each and the SHA-256 of its files. Next to it is a card of each model.
A name of the index is always that model; a file or folder of the same name is written `./nano`.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from importlib import resources
from pathlib import Path
from typing import Any

from asterism.errors import UserError
from asterism.inputs import read_json

NANO, NANO_WITH_CONCEPTS = "nano", "nano-stellar"

_MOST_INDEX = 1 << 20  # bytes


class SameName(UserWarning):
    """A file or folder has the name of a model in the package."""


def packaged_models() -> dict[str, str]:
    """A line about each model, by name."""
    return {name: entry["summary"] for name, entry in _index().items()}


def is_packaged(source: str | os.PathLike[str]) -> bool:
    """Whether this is the name of a model in the package, and not a path."""
    return isinstance(source, str) and source in _index()


def as_place(path: str | os.PathLike[str]) -> str:
    """A path as text that no name of a model equals."""
    place = os.fspath(path)
    return os.path.join(os.curdir, place) if is_packaged(place) else place  # noqa: PTH118


def is_present(name: str) -> bool:
    """Whether the files of the model are there: a source checkout may lack them."""
    return all((folder() / file).is_file() for file in _index()[name]["files"])


def packaged_file(name: str) -> Path:
    """The encoder of a model, after all its files were compared with the index."""
    for file, expected in _index()[name]["files"].items():
        path = folder() / file
        if not path.is_file():
            raise UserError(
                f"{name} is not part of this installation: {path} is missing. Install asterism from its wheel, or "
                "check that file out of the repository; all other models work without it"
            )
        if hashlib.sha256(path.read_bytes()).hexdigest() != expected:
            raise UserError(
                f"{path} is damaged: its SHA-256 is not that of the model {name}. Install asterism again with "
                "`pip install --force-reinstall --no-deps asterism`, or check that file out of the repository"
            )
    if Path(name).exists():
        warnings.warn(
            SameName(f"{name} is the model of the package; write ./{name} for what has this name here"), stacklevel=2
        )
    return folder() / f"{name}.safetensors"


def folder() -> Path:
    return Path(str(resources.files("asterism") / "pretrained"))


def _index() -> dict[str, Any]:
    path = folder() / "index.json"
    return dict(read_json(path, _MOST_INDEX)) if path.is_file() else {}
