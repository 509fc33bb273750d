"""Applying the drawn colour changes: by compiled code where numba is installed, else by torch."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from jaxtyping import UInt8
from torch import Tensor

from asterism.data.views import color
from asterism.data.views.sample import Colors

_UNCHANGED = Colors()


def recolor_(pixels: UInt8[Tensor, "n 3 h w"], colors: Sequence[Colors]) -> None:
    """Apply the colour changes to the views, in place."""
    compiled = compiled_recolor()
    if compiled is None or pixels.device.type != "cpu":
        color.recolor_(pixels, colors)
    elif any(view != _UNCHANGED for view in colors):
        planar = pixels.contiguous()
        compiled(planar.numpy(), colors)
        if planar is not pixels:
            pixels.copy_(planar)


@functools.cache
def compiled_recolor() -> Callable[[Any, Sequence[Colors]], None] | None:
    """None without numba. The first import on a machine compiles for a few seconds."""
    try:
        import numba

        if numba.config.DISABLE_JIT:  # type: ignore[attr-defined]
            return None
        from asterism.data.views.compiled_colors import recolor_ as compiled
    except ImportError:  # also if numba does not support this numpy or Python
        return None
    except Exception as error:  # compilers fail in many ways, and torch does the same
        warnings.warn(f"numba could not compile the code that makes views, which is slower now: {error}", stacklevel=2)
        return None
    return compiled
