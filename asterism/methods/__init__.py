"""One file per method. A new file here is a new method: it needs no registration."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from asterism.errors import unknown

if TYPE_CHECKING:
    from asterism.methods.base import Method
    from asterism.nn.backbone import BackboneConfig


def method_names() -> list[str]:
    """Names of all methods, from the files in this folder, without importing them."""
    return sorted(m.name for m in pkgutil.iter_modules(__path__) if m.name not in ("base", "parts"))


def method_class(name: str) -> type[Method]:
    """The method defined by the file of this name."""
    if name not in method_names():
        raise unknown("method", name, method_names())
    module = importlib.import_module(f"{__name__}.{name}")
    return next(value for value in vars(module).values() if _is_method_of(value, module.__name__))


def create_method(name: str, backbone: BackboneConfig | Mapping[str, Any] | None = None, **settings: Any) -> Method:
    """A method with fresh weights, for a training loop of your own: its settings, and those of its backbone.

    Seed torch before, if the weights should be the same every time.
    """
    from asterism.nn.backbone import BackboneConfig

    kind = method_class(name)
    network = backbone if isinstance(backbone, BackboneConfig) else BackboneConfig.parse(backbone or {}, "backbone")
    return kind(kind.Config.parse({"name": name, **settings}, "method"), network)


def _is_method_of(value: Any, module: str) -> bool:
    from asterism.methods.base import Method

    return isinstance(value, type) and issubclass(value, Method) and value.__module__ == module
