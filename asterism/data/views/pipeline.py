"""From decoded images to their views."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float, Shaped, UInt8
from torch import Tensor

from asterism.data.views import color
from asterism.data.views.crop import cut, cut_labels
from asterism.data.views.sample import Colors, ViewParameters, ViewSampler, check_specs
from asterism.types import ViewSpec

_SMALL = 1 << 15  # levels of a view up to which the call overhead of an operation exceeds its work
_LEVELS_AT_ONCE = 1 << 18  # of small views processed together: a megabyte of float32 stays in the core's cache
_UNCHANGED = Colors()


class Views:
    """The views that a method requests: `sample` draws their parameters, `apply` and `apply_labels` apply them.

    They take several images at once, which saves time for small images, but the views of an image do not depend on the
    rest of the batch. There is no state, so one instance may be used by any number of threads and processes.
    """

    def __init__(self, specs: Sequence[ViewSpec]) -> None:
        check_specs(specs)
        self.specs = tuple(specs)
        self._sampler = ViewSampler(specs)
        self._by_size: dict[int, list[int]] = {}  # numbers of the views of each size, which are made together
        for number, spec in enumerate(specs):
            self._by_size.setdefault(spec.size, []).append(number)

    def prepare(self) -> None:
        """Load compiled code, so that processes forked from this one have it."""
        compiled_recolor()

    def sample(self, sizes: Sequence[tuple[int, int]], keys: Sequence[int]) -> list[tuple[ViewParameters, ...]]:
        """The parameters of every view of every image: a function of the view specs, (height, width) and key."""
        return self._sampler.sample(sizes, keys)

    def apply(
        self, images: Sequence[UInt8[Tensor, "3 _ _"]], parameters: Sequence[tuple[ViewParameters, ...]]
    ) -> list[UInt8[Tensor, "n 3 _ _"]]:
        """The pixels of every view. Fastest for images with the memory layout of the decoder, [h, w, 3] permuted."""
        made: dict[int, UInt8[Tensor, "n 3 _ _"]] = {}
        for size, numbers in self._by_size.items():
            pixels = torch.empty(len(numbers), len(images), 3, size, size, dtype=torch.uint8)
            levels = 3 * size**2
            together = _LEVELS_AT_ONCE // levels if levels <= _SMALL else 1
            for first in range(0, len(images), together):
                few, out = slice(first, first + together), pixels[:, first : first + together]
                same = [[views[number] for views in parameters[few]] for number in numbers]
                cut(images[few], [[view.crop for view in views] for views in same], out)
                for view_pixels, views in zip(out, same, strict=True):
                    recolor_(view_pixels, [view.colors for view in views])
            made |= zip(numbers, pixels, strict=True)
        return [made[number] for number in range(len(self.specs))]

    @property
    def with_labels(self) -> tuple[int, ...]:
        """The numbers of the views that need a label for every pixel."""
        return tuple(number for number, spec in enumerate(self.specs) if spec.segments)

    def apply_labels(
        self, labels: Sequence[Shaped[Tensor, "_ _"]], parameters: Sequence[tuple[ViewParameters, ...]]
    ) -> list[Shaped[Tensor, "n _ _"]]:
        """The labels of the views `with_labels`; each pixel of a view takes the label under its centre."""
        return [
            torch.stack(
                [
                    cut_labels(own, views[number].crop, views[number].size)
                    for own, views in zip(labels, parameters, strict=True)
                ]
            )
            for number in self.with_labels
        ]

    def geometry(self, parameters: Sequence[tuple[ViewParameters, ...]]) -> Float[Tensor, "v n 7"]:
        """Where every view was cut: one row per view and image, read by `ops.geometry.geometry_from_rows`."""
        rows = [[_geometry_row(view) for view in same] for same in zip(*parameters, strict=True)]
        return torch.tensor(rows, dtype=torch.float32)


def _geometry_row(view: ViewParameters) -> tuple[float, ...]:
    crop = view.crop
    return crop.top, crop.left, crop.height, crop.width, view.image_height, view.image_width, crop.flip


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
