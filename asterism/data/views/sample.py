"""Drawing the parameters of views. Every number is a function of the key and of the view's position in the list.

The distributions are torchvision's: RandomResizedCrop (ten tries, then the largest central crop with an allowed ratio),
ColorJitter (four adjustments in random order), RandomGrayscale, GaussianBlur and RandomSolarize.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import permutations
from typing import Literal, NamedTuple

import torch

from asterism.errors import UserError
from asterism.ops.random import fold_each, uniform
from asterism.types import ColorJitter, ViewSpec

Adjustment = Literal["brightness", "contrast", "saturation", "hue"]


class Crop(NamedTuple):
    """A rectangle in pixels of the original image; `flip` mirrors the crop, not the rectangle."""

    top: int
    left: int
    height: int
    width: int
    flip: bool


class Colors(NamedTuple):
    """Colour changes in the order they are applied; the adjustments are in the order drawn."""

    adjustments: tuple[tuple[Adjustment, float], ...] = ()
    grayscale: bool = False
    blur_sigma: float | None = None  # pixels of the view
    solarize_threshold: int | None = None  # levels from here on are inverted


class ViewParameters(NamedTuple):
    """Everything drawn for one view of one image."""

    size: int
    image_height: int
    image_width: int
    crop: Crop
    colors: Colors


_ADJUSTMENTS: tuple[Adjustment, ...] = ("brightness", "contrast", "saturation", "hue")
_ORDERS = tuple(permutations(range(4)))
_TRIES = 10
# One row of uniform numbers per view, each in a fixed column, so that no draw depends on the outcome of another.
_AREA = 0
_RATIO = _AREA + _TRIES
_TOP = _RATIO + _TRIES
_LEFT, _FLIP, _JITTER, _ORDER, _FACTORS = _TOP + 1, _TOP + 2, _TOP + 3, _TOP + 4, _TOP + 5
_GRAYSCALE = _FACTORS + 4
_BLUR, _SIGMA, _SOLARIZE, _DRAWS = _GRAYSCALE + 1, _GRAYSCALE + 2, _GRAYSCALE + 3, _GRAYSCALE + 4


def check_specs(specs: Sequence[ViewSpec]) -> None:
    """Reject views that refer to views that do not come before them. `ViewSpec` checks the rest itself."""
    for place, spec in enumerate(specs):
        if spec.inside is not None and spec.same_place is not None:
            raise UserError(f"view {place} sets both inside and same_place; keep one of them")
        for name in ("inside", "same_place"):
            reference = getattr(spec, name)
            if reference is not None and not 0 <= reference < place:
                allowed = (
                    f"it can refer to views 0 to {place - 1}" if place else "the first view cannot refer to another"
                )
                raise UserError(f"view {place} has {name} = {reference}; {allowed}")


class ViewSampler:
    """Draws the parameters of every view of an image."""

    def __init__(self, specs: Sequence[ViewSpec]) -> None:
        self._views = [_OneView(spec) for spec in specs]

    def sample(self, sizes: Sequence[tuple[int, int]], keys: Sequence[int]) -> list[tuple[ViewParameters, ...]]:
        """For images of the given sizes (height, width), each drawn from its key."""
        each = torch.tensor(keys, dtype=torch.int64)
        folded = torch.stack([fold_each(each, place) for place in range(len(self._views))], dim=1)
        rows = uniform(folded.flatten(), _DRAWS).view(len(keys), len(self._views), _DRAWS).tolist()
        return [self._sample_image(*size, own) for size, own in zip(sizes, rows, strict=True)]

    def _sample_image(self, height: int, width: int, draws: Sequence[Sequence[float]]) -> tuple[ViewParameters, ...]:
        views: list[ViewParameters] = []
        whole = Crop(0, 0, height, width, flip=False)
        for view, row in zip(self._views, draws, strict=True):
            spec = view.spec
            if spec.same_place is not None:
                crop = views[spec.same_place].crop
            else:
                crop = view.crop(whole if spec.inside is None else views[spec.inside].crop, row)
            views.append(ViewParameters(spec.size, height, width, crop, view.colors(row)))
        return tuple(views)


class _OneView:
    """Draws the parameters of one view. What does not depend on the draws is computed once: these are many calls."""

    def __init__(self, spec: ViewSpec) -> None:
        self.spec = spec
        self._log_ratios = math.log(spec.ratio[0]), math.log(spec.ratio[1])
        self._jitter = 0.0 if spec.jitter is None else spec.jitter.probability
        self._orders = [] if spec.jitter is None else _orders(spec.jitter)

    def crop(self, frame: Crop, draws: Sequence[float]) -> Crop:
        """A crop inside `frame`: area uniform, ratio log-uniform, position uniform among those that fit."""
        first_top, first_left, tallest, widest, _ = frame
        flip = draws[_FLIP] < self.spec.flip
        for tried in range(_TRIES):
            area = tallest * widest * _between(*self.spec.scale, draws[_AREA + tried])
            ratio = math.exp(_between(*self._log_ratios, draws[_RATIO + tried]))
            width, height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < width <= widest and 0 < height <= tallest:
                top = first_top + int(draws[_TOP] * (tallest - height + 1))
                left = first_left + int(draws[_LEFT] * (widest - width + 1))
                return Crop(top, left, height, width, flip)
        return _central_crop(self.spec, frame, flip)

    def colors(self, draws: Sequence[float]) -> Colors:
        spec, jittered = self.spec, draws[_JITTER] < self._jitter
        order = self._orders[int(draws[_ORDER] * len(_ORDERS))] if jittered else ()
        return Colors(
            adjustments=tuple([(name, _between(low, high, draws[column])) for name, low, high, column in order]),
            grayscale=draws[_GRAYSCALE] < spec.grayscale,
            blur_sigma=_between(*spec.blur_sigma, draws[_SIGMA]) if draws[_BLUR] < spec.blur else None,
            solarize_threshold=spec.solarize_threshold if draws[_SOLARIZE] < spec.solarize else None,
        )


def _orders(jitter: ColorJitter) -> list[list[tuple[Adjustment, float, float, int]]]:
    """The adjustments in every order: name, lowest and highest factor, and the column that draws it."""
    ranges: list[tuple[Adjustment, float, float, int]] = []
    for kind, name in enumerate(_ADJUSTMENTS):
        strength = getattr(jitter, name)
        low, high = (-strength, strength) if name == "hue" else (max(0.0, 1 - strength), 1 + strength)
        ranges.append((name, low, high, _FACTORS + kind))
    return [[ranges[kind] for kind in order if getattr(jitter, _ADJUSTMENTS[kind]) > 0] for order in _ORDERS]


def _central_crop(spec: ViewSpec, frame: Crop, flip: bool) -> Crop:
    """The whole frame, cut down to an allowed ratio."""
    height = min(frame.height, max(1, round(frame.width / spec.ratio[0])))
    width = min(frame.width, max(1, round(frame.height * spec.ratio[1])))
    top = frame.top + (frame.height - height) // 2
    left = frame.left + (frame.width - width) // 2
    return Crop(top, left, height, width, flip)


def _between(low: float, high: float, draw: float) -> float:
    return low + (high - low) * draw
