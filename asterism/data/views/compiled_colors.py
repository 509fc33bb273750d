"""Colour changes of views, compiled by numba. A view stays in the core's cache from its first change to its last.

The formulas are those of `color.py` and `blur.py`, which derive them and are used where numba is not installed. Both
round to bytes once, at the end. A few levels in a million then differ by one, and are inverted or not if they are next
to the threshold of solarize.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, no_type_check

import numba
import numpy as np
from jaxtyping import Float32, Int8, Int16, Int64, UInt8

from asterism.data.views.blur import half_kernels
from asterism.data.views.color import LUMA, hue_offsets
from asterism.data.views.sample import Colors

_single = np.float32
_RED, _GREEN, _BLUE = map(_single, LUMA)
_BLACK, _WHITE, _ONE, _TWO, _THREE = map(_single, (0, 255, 1, 2, 3))
_INTEGERS = _single(2**23)  # from here on float32 has no fractions: adding and subtracting it rounds to whole levels
_BRIGHTNESS, _CONTRAST, _SATURATION, _HUE = range(4)
_KINDS = {"brightness": _BRIGHTNESS, "contrast": _CONTRAST, "saturation": _SATURATION, "hue": _HUE}
_NEVER = 256  # a threshold above all levels
_FEW = 1024  # levels whose sum is exact enough in single precision

# Numbers are finite, zeros have no sign, and a product and a sum may be one instruction. A sum over pixels may also be
# reordered, which makes it a vector operation. Numba checks the types of compiled functions; our own checks at run time
# would have to be compiled too.
_FAST = {"nnan", "ninf", "nsz", "contract"}
_fast = numba.njit(fastmath=_FAST, nogil=True)
_reordered = numba.njit(fastmath={*_FAST, "reassoc"}, nogil=True)


def compiled_once(signature: str) -> Callable[[Any], Any]:
    """Compiles now, with everything that the function calls, and keeps the result in a file if a folder is writable.

    The file follows changes of this module alone: after a change of a constant in another one, it has to be removed.
    """

    def compiled(function: Any) -> Any:
        try:
            return numba.njit(signature, nogil=True, cache=True)(function)
        except (RuntimeError, OSError):  # no folder, or no space
            return numba.njit(signature, nogil=True)(function)

    return compiled


def recolor_(pixels: UInt8[np.ndarray, "n 3 h w"], colors: Sequence[Colors]) -> None:
    """Apply the drawn colour changes to the views, in place."""
    adjustments = [adjustment for own in colors for adjustment in own.adjustments]
    factors = np.array([factor for _, factor in adjustments])
    _recolor(
        pixels.reshape(len(pixels), 3, -1),
        pixels.shape[-1],
        np.cumsum([len(own.adjustments) for own in colors]),
        np.array([_KINDS[name] for name, _ in adjustments], np.int8),
        factors.astype(np.float32),
        hue_offsets(factors).astype(np.float32),
        np.array([own.grayscale for own in colors], np.int8),
        *_kernels([own.blur_sigma for own in colors], longest=min(pixels.shape[2:]) - 1),
        np.array([_NEVER if own.solarize_threshold is None else own.solarize_threshold for own in colors], np.int16),
    )


def _kernels(
    sigmas: Sequence[float | None], longest: int
) -> tuple[Float32[np.ndarray, "n taps"], Int64[np.ndarray, " n"]]:
    """Half kernels and their radii; a view without blur has radius 0."""
    blurred = [place for place, sigma in enumerate(sigmas) if sigma is not None]
    kernels, radii = np.zeros((len(sigmas), 1), np.float32), np.zeros(len(sigmas), np.int64)
    if blurred:
        found, radii[blurred] = half_kernels([sigma for sigma in sigmas if sigma is not None], longest)
        kernels = np.zeros((len(sigmas), found.shape[1]), np.float32)
        kernels[blurred] = found
    return kernels, radii


@_reordered
@no_type_check
def _sum(levels: Float32[np.ndarray, " n"]) -> np.float32:
    total = _BLACK
    for i in range(len(levels)):
        total += levels[i]
    return total


@_fast
@no_type_check
def _mean_luma(
    red: Float32[np.ndarray, " n"], green: Float32[np.ndarray, " n"], blue: Float32[np.ndarray, " n"]
) -> np.float32:
    """Sums of a few levels in single precision, of these sums in double."""
    total = 0.0
    for first in range(0, len(red), _FEW):
        few = slice(first, first + _FEW)
        total += _RED * _sum(red[few]) + _GREEN * _sum(green[few]) + _BLUE * _sum(blue[few])
    return _single(total / len(red))


@_fast
@no_type_check
def _scale_and_shift(levels: Float32[np.ndarray, " n"], factor: np.float32, shift: np.float32) -> None:
    """Brightness and contrast."""
    for i in range(len(levels)):
        levels[i] = min(max(levels[i] * factor + shift, _BLACK), _WHITE)


@_fast
@no_type_check
def _saturate(
    red: Float32[np.ndarray, " n"],
    green: Float32[np.ndarray, " n"],
    blue: Float32[np.ndarray, " n"],
    factor: np.float32,
) -> None:
    for i in range(len(red)):
        r, g, b = red[i], green[i], blue[i]
        gray = (r * _RED + g * _GREEN + b * _BLUE) * (_ONE - factor)
        red[i] = min(max(r * factor + gray, _BLACK), _WHITE)
        green[i] = min(max(g * factor + gray, _BLACK), _WHITE)
        blue[i] = min(max(b * factor + gray, _BLACK), _WHITE)


@_fast
@no_type_check
def _rotate_hue(
    red: Float32[np.ndarray, " n"],
    green: Float32[np.ndarray, " n"],
    blue: Float32[np.ndarray, " n"],
    to_red: np.float32,
    to_green: np.float32,
    to_blue: np.float32,
) -> None:
    """As derived in `color.adjust_hue`."""
    for i in range(len(red)):
        r, g, b = red[i], green[i], blue[i]
        largest, smallest = max(r, g, b), min(r, g, b)
        chroma = largest - smallest
        hue = largest - r + g + b - _TWO * smallest
        hue = hue if g >= b else -hue
        base, turn = smallest - chroma, _THREE * chroma
        red[i] = min(max(abs(abs(hue + chroma * to_red) - turn) + base, smallest), largest)
        green[i] = min(max(abs(abs(hue + chroma * to_green) - turn) + base, smallest), largest)
        blue[i] = min(max(abs(abs(hue + chroma * to_blue) - turn) + base, smallest), largest)


@_fast
@no_type_check
def _gray(red: Float32[np.ndarray, " n"], green: Float32[np.ndarray, " n"], blue: Float32[np.ndarray, " n"]) -> None:
    for i in range(len(red)):
        red[i] = green[i] = blue[i] = red[i] * _RED + green[i] * _GREEN + blue[i] * _BLUE


@_fast
@no_type_check
def _blur(
    channel: Float32[np.ndarray, "h w"],
    padded: Float32[np.ndarray, " size"],
    smooth: Float32[np.ndarray, " size"],
    kernel: Float32[np.ndarray, " taps"],
    radius: int,
) -> None:
    """Down the columns, then along the rows: sums of shifted copies of the channel, reflected at its borders.

    Its padded rows follow each other, so that every shift is one long vector operation. What runs from the end of a row
    into the next falls into the padding.
    """
    height, width = channel.shape
    bottom, right, stride = height - 1, width - 1, width + 2 * radius
    for y in range(-radius, height + radius):
        line, row = padded[(radius + y) * stride :], channel[bottom - abs(bottom - abs(y))]
        _copy(row, line[radius:])
        for distance in range(1, radius + 1):
            line[radius - distance] = row[distance]
            line[radius + right + distance] = row[right - distance]
    down = height * stride
    _scale(padded[radius * stride :], kernel[0], smooth[:down])
    for distance in range(1, radius + 1):
        one, other = padded[(radius - distance) * stride :], padded[(radius + distance) * stride :]
        _add_pair(one, other, kernel[distance], smooth[:down])
    along = down - 2 * radius
    _scale(smooth[radius:], kernel[0], padded[:along])
    for distance in range(1, radius + 1):
        _add_pair(smooth[radius - distance :], smooth[radius + distance :], kernel[distance], padded[:along])
    for y in range(height):
        _copy(padded[y * stride : y * stride + width], channel[y])


@_fast
@no_type_check
def _copy(levels: Float32[np.ndarray, " n"], out: Float32[np.ndarray, " _"]) -> None:
    for i in range(len(levels)):
        out[i] = levels[i]


@_fast
@no_type_check
def _scale(levels: Float32[np.ndarray, " _"], weight: np.float32, out: Float32[np.ndarray, " n"]) -> None:
    for i in range(len(out)):
        out[i] = levels[i] * weight


@_fast
@no_type_check
def _add_pair(
    one: Float32[np.ndarray, " _"], other: Float32[np.ndarray, " _"], weight: np.float32, out: Float32[np.ndarray, " n"]
) -> None:
    for i in range(len(out)):
        out[i] += (one[i] + other[i]) * weight


@_fast
@no_type_check
def _to_bytes(levels: Float32[np.ndarray, " n"], out: UInt8[np.ndarray, " n"], threshold: int) -> None:
    """Round, and invert from the threshold on."""
    for i in range(len(levels)):
        level = np.int32((levels[i] + _INTEGERS) - _INTEGERS)
        out[i] = np.uint8(255 - level if level >= threshold else level)


@_fast
@no_type_check
def _to_levels(pixels: UInt8[np.ndarray, " n"], out: Float32[np.ndarray, " n"]) -> None:
    for i in range(len(pixels)):
        out[i] = pixels[i]


@compiled_once(
    "void(uint8[:, :, ::1], int64, int64[::1], int8[::1], float32[::1], float32[:, ::1], int8[::1], float32[:, ::1], "
    "int64[::1], int16[::1])"
)
@no_type_check
def _recolor(
    pixels: UInt8[np.ndarray, "n 3 p"],
    width: int,
    ends: Int64[np.ndarray, " n"],
    kinds: Int8[np.ndarray, " m"],
    factors: Float32[np.ndarray, " m"],
    offsets: Float32[np.ndarray, "m 3"],
    gray: Int8[np.ndarray, " n"],
    kernels: Float32[np.ndarray, "n taps"],
    radii: Int64[np.ndarray, " n"],
    thresholds: Int16[np.ndarray, " n"],
) -> None:
    """ends: where each view's adjustments end, among those of all views. offsets: of the hue, if that is what changes.
    kernels: the centre and one side, of which `radii` says how many count."""
    views, _, area = pixels.shape
    levels = np.empty(3 * area, np.float32)
    red, green, blue = levels[:area], levels[area : 2 * area], levels[2 * area :]
    rows = levels.reshape(-1, width)
    height, most = area // width, 2 * (kernels.shape[1] - 1)  # rows and columns of padding
    padded = np.empty((height + most) * (width + most), np.float32)
    smooth = np.empty(height * (width + most), np.float32)
    first = 0
    for view in range(views):
        _to_levels(pixels[view].reshape(-1), levels)
        for turn in range(first, ends[view]):
            kind, factor = kinds[turn], factors[turn]
            if kind == _BRIGHTNESS:
                _scale_and_shift(levels, factor, _BLACK)
            elif kind == _CONTRAST:
                _scale_and_shift(levels, factor, (_ONE - factor) * _mean_luma(red, green, blue))
            elif kind == _SATURATION:
                _saturate(red, green, blue, factor)
            elif kind == _HUE:
                _rotate_hue(red, green, blue, offsets[turn, 0], offsets[turn, 1], offsets[turn, 2])
        first = ends[view]
        if gray[view]:
            _gray(red, green, blue)
        if radii[view] > 0:
            for channel in range(3):
                _blur(rows[channel * height : (channel + 1) * height], padded, smooth, kernels[view], radii[view])
        _to_bytes(levels, pixels[view].reshape(-1), thresholds[view])
