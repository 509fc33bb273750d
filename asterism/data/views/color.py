"""Colours of views: planar float32 levels in [0, 255], rounded to uint8 once, at the end.

torchvision rounds down to uint8 after every operation; here there is no rounding in between. Each operation on its own
agrees with torchvision's, on tensors and on PIL images, within 1 level (factors up to 2), with one exception: PIL
rotates hues in 8-bit HSV, which is 1 to 2 levels off on average and up to 16. Solarize is equal.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float64, UInt8
from torch import Tensor

from asterism.data.views.blur import blur
from asterism.data.views.sample import Adjustment, Colors

LUMA = (0.2989, 0.587, 0.114)  # ITU-R 601, the digits torchvision uses
_PEAKS = (0.0, 2.0, -2.0)  # hues of red, green and blue, in sixths of the circle


def recolor_(pixels: UInt8[Tensor, "n 3 h w"], colors: Sequence[Colors]) -> None:
    """Apply the drawn colour changes to the views, in place."""
    if any(view.adjustments or view.grayscale or view.blur_sigma is not None for view in colors):
        levels = _adjust(pixels.to(torch.float32), [view.adjustments for view in colors])
        levels = _change(levels, _gray, [view.grayscale or None for view in colors])
        levels = _change(levels, blur, [view.blur_sigma for view in colors])
        pixels.copy_(to_uint8(levels))
    inverted = _change(pixels, solarize, [view.solarize_threshold for view in colors])
    if inverted is not pixels:
        pixels.copy_(inverted)


def _adjust(
    levels: Float[Tensor, "n 3 h w"], adjustments: Sequence[Sequence[tuple[Adjustment, float]]]
) -> Float[Tensor, "n 3 h w"]:
    """Apply each view's adjustments in its own order; `levels` is overwritten.

    For every turn the views are sorted by what happens to them next: whole slices then change in place.
    """
    views = range(len(levels))
    order: Sequence[int] = views  # of the views in `levels`
    for turn in range(max(map(len, adjustments))):
        due: dict[Adjustment, list[int]] = {name: [] for name in _ADJUST}
        for view in views:
            if turn < len(adjustments[view]):
                due[adjustments[view][turn][0]].append(view)
        rest = [view for view in views if turn >= len(adjustments[view])]
        levels, order = _sort(levels, order, [*chain.from_iterable(due.values()), *rest])
        first = 0
        for name, some in due.items():
            if some:
                _ADJUST[name](levels[first : first + len(some)], [adjustments[view][turn][1] for view in some])
                first += len(some)
    return _sort(levels, order, views)[0]


def _sort(
    levels: Float[Tensor, "n 3 h w"], order: Sequence[int], wanted: Sequence[int]
) -> tuple[Float[Tensor, "n 3 h w"], Sequence[int]]:
    """Views that are in one order, in another."""
    if list(order) == list(wanted):
        return levels, wanted
    place = {view: row for row, view in enumerate(order)}
    rows = torch.tensor([place[view] for view in wanted], device=levels.device)
    return levels.index_select(0, rows), wanted


def _change(views: Tensor, change: Callable[[Tensor, list[Any]], Tensor], settings: Sequence[float | None]) -> Tensor:
    """The views, each changed according to its setting, if it has one. `change` may write into its input."""
    chosen = [place for place, setting in enumerate(settings) if setting is not None]
    own = [setting for setting in settings if setting is not None]
    if len(chosen) == len(views):
        return change(views, own)
    if chosen:
        views[chosen] = change(views[chosen], own)
    return views


def to_uint8(levels: Float[Tensor, "n c h w"]) -> UInt8[Tensor, "n c h w"]:
    """Rounded levels, converted via int16, because torch does not vectorise float to uint8."""
    return levels.round_().to(torch.int16).to(torch.uint8)


def adjust_brightness(levels: Float[Tensor, "n 3 h w"], factors: Sequence[float]) -> Float[Tensor, "n 3 h w"]:
    """Towards black, or away from it."""
    return _in_range(levels.mul_(_each(factors, levels)), factors)


def adjust_contrast(levels: Float[Tensor, "n 3 h w"], factors: Sequence[float]) -> Float[Tensor, "n 3 h w"]:
    """Away from the mean grey level, or towards it."""
    means = [sum(map(operator.mul, LUMA, channels)) for channels in levels.mean((2, 3)).tolist()]
    shifts = [(1 - factor) * mean for factor, mean in zip(factors, means, strict=True)]
    return _in_range(levels.mul_(_each(factors, levels)).add_(_each(shifts, levels)), factors)


def adjust_saturation(levels: Float[Tensor, "n 3 h w"], factors: Sequence[float]) -> Float[Tensor, "n 3 h w"]:
    """Away from each pixel's grey level, or towards it."""
    return _in_range(torch.lerp(luma(levels), levels, _each(factors, levels), out=levels), factors)


def adjust_hue(levels: Float[Tensor, "n 3 h w"], factors: Sequence[float]) -> Float[Tensor, "n 3 h w"]:
    """Rotate each hue by `factor` of a circle, keeping each pixel's largest level M and smallest m, as HSV does.

    Measure the hue h in sixths of the circle from red, −3 ≤ h ≤ 3, and let C = M − m. A channel that peaks at hue c
    (red 0, green 2, blue −2) has the level m + C·clamp(2 − |h − c|, 0, 1), with the distance taken around the circle:
    for any |x| ≤ 6 it is 3 − ||x| − 3|. Conversely, h has the sign of g − b, and C·|h| = M − 2m − r + g + b. All
    quantities are multiplied by C, so there is no division and greys need no special case. A rotation by a third of the
    circle only permutes the channels, which leaves at most one sixth to rotate and keeps |x| ≤ 6.
    """
    offsets = torch.from_numpy(hue_offsets(factors)).to(levels)[:, :, None, None]
    red, green, blue = levels[:, :1], levels[:, 1:2], levels[:, 2:]
    largest, smallest = levels.amax(1, keepdim=True), levels.amin(1, keepdim=True)
    chroma = largest - smallest
    hue = (largest - red).add_(green).add_(blue).sub_(smallest, alpha=2).copysign_(green - blue)
    torch.addcmul(hue, chroma, offsets, out=levels)
    levels.abs_().sub_(chroma, alpha=3).abs_().add_(smallest - chroma)
    return torch.clamp(levels, smallest, largest, out=levels)


def hue_offsets(factors: Sequence[float] | Float64[np.ndarray, " n"]) -> Float64[np.ndarray, "n 3"]:
    """For each factor, the rotation minus the hues at which red, green and blue peak after its whole thirds."""
    factor = np.asarray(factors)[:, None]
    thirds = np.rint(3 * factor)
    peaks = np.array(_PEAKS)[(np.arange(3) - thirds.astype(np.int64)) % 3]
    return 6 * factor - 2 * thirds - peaks


def luma(levels: Float[Tensor, "n 3 h w"]) -> Float[Tensor, "n 1 h w"]:
    red, green, blue = levels[:, :1], levels[:, 1:2], levels[:, 2:]
    return (red * LUMA[0]).add_(green, alpha=LUMA[1]).add_(blue, alpha=LUMA[2])


def _gray(levels: Float[Tensor, "n 3 h w"], _: Sequence[bool]) -> Float[Tensor, "n 1 h w"]:
    return luma(levels)


def solarize(pixels: UInt8[Tensor, "n 3 h w"], thresholds: Sequence[int]) -> UInt8[Tensor, "n 3 h w"]:
    """Invert the levels at or above a threshold: 255 − x is x with all bits flipped."""
    flipped_bits = (pixels >= _each(thresholds, pixels)).view(torch.uint8).neg_()  # 255 where inverted, else 0
    return flipped_bits.bitwise_xor_(pixels)


def _each(values: Sequence[float], like: Tensor) -> Tensor | float:
    """One number per view, broadcast over its levels; for a single view the number itself, which is faster."""
    return values[0] if len(values) == 1 else torch.tensor(values, device=like.device)[:, None, None, None]


def _in_range(levels: Float[Tensor, "n 3 h w"], factors: Sequence[float]) -> Float[Tensor, "n 3 h w"]:
    """Clamp to valid levels. Only factors above 1 can leave the range: others interpolate between two valid levels."""
    return levels.clamp_(0, 255) if max(factors) > 1 else levels


_ADJUST: dict[Adjustment, Callable[[Tensor, Sequence[float]], Tensor]] = {  # each writes into its input
    "brightness": adjust_brightness,
    "contrast": adjust_contrast,
    "saturation": adjust_saturation,
    "hue": adjust_hue,
}
