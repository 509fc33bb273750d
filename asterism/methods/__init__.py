"""One file per method. A new file here is a new method: it needs no registration. Other packages add more."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asterism.errors import unknown
from asterism.plugins import first_line, plugins

if TYPE_CHECKING:
    from asterism.methods.base import Method
    from asterism.nn.backbone import BackboneConfig


def method_names() -> list[str]:
    """Names of all methods, without importing them."""
    return sorted({*_files(), *plugins("methods")})


def method_summaries() -> dict[str, str]:
    """The first line of every method's file, by name."""
    files, added = _files(), plugins("methods")
    return {name: first_line(files[name]) if name in files else added[name].summary() for name in method_names()}


def method_class(name: str) -> type[Method]:
    """The method defined by the file of this name, or by a package that is installed."""
    if name in _files():
        module = importlib.import_module(f"{__name__}.{name}")
        return next(value for value in vars(module).values() if _is_method_of(value, module.__name__))
    if name not in plugins("methods"):
        raise unknown("method", name, method_names())
    found: type[Method] = plugins("methods")[name].load()
    return found


def create_method(name: str, backbone: BackboneConfig | Mapping[str, Any] | None = None, **settings: Any) -> Method:
    """A method with fresh weights, for a training loop of your own: its settings, and those of its backbone.

    Seed torch before, if the weights should be the same every time.
    """
    from asterism.nn.backbone import BackboneConfig

    kind = method_class(name)
    network = backbone if isinstance(backbone, BackboneConfig) else BackboneConfig.parse(backbone or {}, "backbone")
    return kind(kind.Config.parse({"name": name, **settings}, "method"), network)


def _files() -> dict[str, Path]:
    paths = sorted(Path(__file__).parent.glob("*.py"))
    return {path.stem: path for path in paths if path.stem not in ("__init__", "base")}


def _is_method_of(value: Any, module: str) -> bool:
    from asterism.methods.base import Method

    return isinstance(value, type) and issubclass(value, Method) and value.__module__ == module
