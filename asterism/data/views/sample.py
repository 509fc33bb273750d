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


def sample_views(
    specs: Sequence[ViewSpec], sizes: Sequence[tuple[int, int]], keys: Sequence[int]
) -> list[tuple[ViewParameters, ...]]:
    """The parameters of every view of images of the given sizes (height, width), each drawn from its key."""
    each = torch.tensor(keys, dtype=torch.int64)
    draws = uniform(torch.stack([fold_each(each, place) for place in range(len(specs))], dim=1).flatten(), _DRAWS)
    rows = draws.view(len(keys), len(specs), _DRAWS).tolist()
    return [_sample_image(specs, *size, own) for size, own in zip(sizes, rows, strict=True)]


def _sample_image(
    specs: Sequence[ViewSpec], height: int, width: int, draws: Sequence[Sequence[float]]
) -> tuple[ViewParameters, ...]:
    views: list[ViewParameters] = []
    for spec, row in zip(specs, draws, strict=True):
        if spec.same_place is not None:
            crop = views[spec.same_place].crop
        elif spec.inside is not None:
            crop = sample_crop(spec, views[spec.inside].crop, row)
        else:
            crop = sample_crop(spec, Crop(0, 0, height, width, flip=False), row)
        views.append(ViewParameters(spec.size, height, width, crop, sample_colors(spec, row)))
    return tuple(views)


def sample_crop(spec: ViewSpec, frame: Crop, draws: Sequence[float]) -> Crop:
    """A crop inside `frame`: area uniform, ratio log-uniform, position uniform among those that fit."""
    flip = draws[_FLIP] < spec.flip
    shortest, longest = math.log(spec.ratio[0]), math.log(spec.ratio[1])
    for area_draw, ratio_draw in zip(draws[_AREA:_RATIO], draws[_RATIO:_TOP], strict=True):
        area = frame.height * frame.width * _between(*spec.scale, area_draw)
        ratio = math.exp(_between(shortest, longest, ratio_draw))
        width, height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < width <= frame.width and 0 < height <= frame.height:
            top = frame.top + int(draws[_TOP] * (frame.height - height + 1))
            left = frame.left + int(draws[_LEFT] * (frame.width - width + 1))
            return Crop(top, left, height, width, flip)
    return _central_crop(spec, frame, flip)


def sample_colors(spec: ViewSpec, draws: Sequence[float]) -> Colors:
    """The colour changes of a view."""
    jittered = spec.jitter is not None and draws[_JITTER] < spec.jitter.probability
    return Colors(
        adjustments=_sample_adjustments(spec.jitter, draws) if spec.jitter is not None and jittered else (),
        grayscale=draws[_GRAYSCALE] < spec.grayscale,
        blur_sigma=_between(*spec.blur_sigma, draws[_SIGMA]) if draws[_BLUR] < spec.blur else None,
        solarize_threshold=spec.solarize_threshold if draws[_SOLARIZE] < spec.solarize else None,
    )


def _sample_adjustments(jitter: ColorJitter, draws: Sequence[float]) -> tuple[tuple[Adjustment, float], ...]:
    drawn: list[tuple[Adjustment, float]] = []
    for kind in _ORDERS[int(draws[_ORDER] * len(_ORDERS))]:
        name = _ADJUSTMENTS[kind]
        strength = getattr(jitter, name)
        low, high = (-strength, strength) if name == "hue" else (max(0.0, 1 - strength), 1 + strength)
        if strength > 0:
            drawn.append((name, _between(low, high, draws[_FACTORS + kind])))
    return tuple(drawn)


def _central_crop(spec: ViewSpec, frame: Crop, flip: bool) -> Crop:
    """The whole frame, cut down to an allowed ratio."""
    height = min(frame.height, max(1, round(frame.width / spec.ratio[0])))
    width = min(frame.width, max(1, round(frame.height * spec.ratio[1])))
    top = frame.top + (frame.height - height) // 2
    left = frame.left + (frame.width - width) // 2
    return Crop(top, left, height, width, flip)


def _between(low: float, high: float, draw: float) -> float:
    return low + (high - low) * draw
