"""One file per method. A new file here is a new method: nothing else has to know of it."""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING, Any

from asterism.errors import unknown

if TYPE_CHECKING:
    from asterism.methods.base import Method


def method_names() -> list[str]:
    """Names of all methods, from the files of this folder; none of them is imported."""
    return sorted(m.name for m in pkgutil.iter_modules(__path__) if m.name not in ("base", "parts"))


def method_class(name: str) -> type[Method]:
    """The method that the file of this name defines."""
    if name not in method_names():
        raise unknown("method", name, method_names())
    module = importlib.import_module(f"{__name__}.{name}")
    return next(value for value in vars(module).values() if _is_method_of(value, module.__name__))


def _is_method_of(value: Any, module: str) -> bool:
    from asterism.methods.base import Method

    return isinstance(value, type) and issubclass(value, Method) and value.__module__ == module
