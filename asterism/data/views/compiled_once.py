"""Compiling functions with numba, once per machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba


def compiled_once(signature: str) -> Callable[[Any], Any]:
    """Compiles now, with everything that the function calls, and keeps the result in a file if a folder is writable.

    The file follows changes of the function's own module alone: after a change of a constant in another one, it has to
    be removed.
    """

    def compiled(function: Any) -> Any:
        try:
            return numba.njit(signature, nogil=True, cache=True)(function)
        except (RuntimeError, OSError):  # no folder, or no space
            return numba.njit(signature, nogil=True)(function)

    return compiled
