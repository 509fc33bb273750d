"""Evaluation protocols, found by file name: `dense_nn.py` is the protocol `dense-nn`.

A file in this folder is a protocol if it defines a class derived from `Evaluation`. That is determined from the source
text, so listing protocols imports nothing.
"""

from __future__ import annotations

import ast
import importlib
from pathlib import Path
from typing import TYPE_CHECKING

from asterism.errors import unknown

if TYPE_CHECKING:
    from asterism.evals.base import Evaluation


def protocol_names() -> list[str]:
    return sorted(protocol_summaries())


def protocol_summaries() -> dict[str, str]:
    """The first line of every protocol's docstring, by name."""
    summaries = {}
    for path in sorted(Path(__file__).parent.glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if _class_name(tree) is not None:
            summaries[path.stem.replace("_", "-")] = (ast.get_docstring(tree) or "").partition("\n")[0]
    return summaries


def protocol_class(name: str) -> type[Evaluation]:
    """The class that defines a protocol."""
    if name not in protocol_names():
        raise unknown("protocol", name, protocol_names())
    stem = name.replace("-", "_")
    class_name = _class_name(ast.parse((Path(__file__).parent / f"{stem}.py").read_text(encoding="utf-8")))
    assert class_name is not None
    found: type[Evaluation] = getattr(importlib.import_module(f"asterism.evals.{stem}"), class_name)
    return found


def _class_name(tree: ast.Module) -> str | None:
    """Name of the class derived from `Evaluation`, if the file defines one."""
    for node in tree.body:
        bases = [base.id for base in getattr(node, "bases", ()) if isinstance(base, ast.Name)]
        if isinstance(node, ast.ClassDef) and any(name.endswith("Evaluation") for name in bases):
            return node.name
    return None
