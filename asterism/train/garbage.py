"""Python's search for unreachable objects, during training.

A full search visits every object of the process, most of them from imported libraries: a tenth of a second, every few
steps of a small network. Objects that exist when training begins are left out of it.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def search_new_objects_only() -> Iterator[None]:
    """Objects that exist now are not searched in here."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
