"""Applying the drawn colour changes: by compiled code where numba is installed, else by torch."""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import UInt8
from torch import Tensor

from asterism.data.views import color
from asterism.data.views.compiled import compiled_functions
from asterism.data.views.sample import Colors

_UNCHANGED = Colors()


def recolor_(pixels: UInt8[Tensor, "n 3 h w"], colors: Sequence[Colors]) -> None:
    """Apply the colour changes to the views, in place."""
    compiled = compiled_functions()
    if compiled is None:
        color.recolor_(pixels, colors)
    elif any(view != _UNCHANGED for view in colors):
        planar = pixels.contiguous()
        compiled.recolor_(planar.numpy(), colors)
        if planar is not pixels:
            pixels.copy_(planar)
