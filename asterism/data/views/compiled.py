"""Functions that numba compiles, where it is installed."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from asterism.data.views.sample import Colors, Crop


class CompiledFunctions(NamedTuple):
    """See `compiled_crops.py` and `compiled_colors.py`."""

    resize_crops: Callable[[Any, Sequence[Crop], Any], None]
    recolor_: Callable[[Any, Sequence[Colors]], None]


@functools.cache
def compiled_functions() -> CompiledFunctions | None:
    """None without numba. The first import on a machine compiles for a few seconds."""
    try:
        import numba

        if numba.config.DISABLE_JIT:  # type: ignore[attr-defined]
            return None
        from asterism.data.views.compiled_colors import recolor_
        from asterism.data.views.compiled_crops import resize_crops
    except ImportError:  # also if numba does not support this numpy or Python
        return None
    except Exception as error:  # whatever the compiler raises: torch computes the same
        warnings.warn(f"numba could not compile the code that makes views, which is slower now: {error}", stacklevel=2)
        return None
    return CompiledFunctions(resize_crops, recolor_)
