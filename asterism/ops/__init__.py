"""Pure functions on tensors, one idea per module: `from asterism import ops`, then `ops.koleo.koleo(tokens)`.

Modules are loaded when first used.
"""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType


def __getattr__(name: str) -> ModuleType:
    if not name.startswith("_") and name in __dir__():
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module 'asterism.ops' has no attribute {name!r}; it has {', '.join(__dir__())}")


def __dir__() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(__path__))
