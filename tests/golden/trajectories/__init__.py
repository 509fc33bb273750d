"""Replays of official training runs, one adapter module per family of files.

An adapter has `FILES`, a glob of file names, and `replay(path)`, which takes the steps with our method and yields the
comparisons. `python -m tests.golden.trajectories` prints a table of errors and tolerances.
"""

import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from tests.golden.trajectories.compared import Compared


class Adapter(Protocol):
    FILES: str

    def replay(self, path: Path) -> Iterator[Compared]: ...


def adapter_of(path: Path) -> Adapter:
    names = sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name != "__main__")
    modules = [importlib.import_module(f"{__name__}.{name}") for name in names]
    found = [module for module in modules if hasattr(module, "FILES") and path.match(module.FILES)]
    if len(found) != 1:
        raise LookupError(f"{path.name} must match FILES of one module of {__name__}; it matches {len(found)}: {found}")
    return found[0]
