"""Evaluation protocols, found by file name: `dense_nn.py` is the protocol `dense-nn`. Other packages add more.

A file in this folder is a protocol if it defines a class derived from `Evaluation`. That is determined from the source
text, so listing protocols imports nothing.
"""

from __future__ import annotations

import ast
import functools
import importlib
from pathlib import Path
from typing import TYPE_CHECKING

from asterism.errors import unknown
from asterism.plugins import first_line, plugins

if TYPE_CHECKING:
    from asterism.evals.base import Evaluation


def protocol_names() -> list[str]:
    return sorted({*_files(), *plugins("protocols")})


def protocol_summaries() -> dict[str, str]:
    """The first line of every protocol's docstring, by name."""
    files, added = _files(), plugins("protocols")
    return {name: first_line(files[name][0]) if name in files else added[name].summary() for name in protocol_names()}


def protocol_class(name: str) -> type[Evaluation]:
    """The class that defines a protocol."""
    found: type[Evaluation]
    if name in (files := _files()):
        path, class_name = files[name]
        found = getattr(importlib.import_module(f"{__name__}.{path.stem}"), class_name)
    elif name in (added := plugins("protocols")):
        found = added[name].load()
    else:
        raise unknown("protocol", name, protocol_names())
    return found


@functools.cache
def _files() -> dict[str, tuple[Path, str]]:
    """The file and the class of every protocol of this folder, by name."""
    paths = sorted(Path(__file__).parent.glob("*.py"))
    return {path.stem.replace("_", "-"): (path, name) for path in paths if (name := _class_name(path)) is not None}


def _class_name(file: Path) -> str | None:
    """Name of the class derived from `Evaluation`, if the file defines one."""
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        bases = [base.id for base in getattr(node, "bases", ()) if isinstance(base, ast.Name)]
        if isinstance(node, ast.ClassDef) and any(name.endswith("Evaluation") for name in bases):
            return node.name
    return None
