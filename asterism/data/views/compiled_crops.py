"""Crops of small images, resized by compiled code. Equal to torch's to the bit.

torch resizes bytes in two passes, first along the rows. Each adds integer multiples of 2⁻ᵖ, which makes its sums exact
in any order, and rounds to bytes. Here the weights for every length of a crop are computed once, and both passes add
whole columns and rows, which are vector operations.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple, no_type_check

import numba
import numpy as np
from jaxtyping import Float64, Int32, Int64, UInt8

from asterism.data.views.compiled_once import compiled_once
from asterism.data.views.sample import Crop

_AT_ONCE = 4  # lines that are added
_SIXTEEN_BITS = 1 << 15  # torch's weights are below, in units of 2⁻ᵖ


class _Weights(NamedTuple):
    """How a side of any length up to the longest, the first index of each, becomes one of `size` pixels."""

    bits: Int32[np.ndarray, " lengths"]  # p
    starts: Int32[np.ndarray, "lengths size"]  # the first pixel that counts
    taps: Int32[np.ndarray, "lengths size"]  # how many do
    weights: Int32[np.ndarray, "lengths size most"]  # in units of 2⁻ᵖ


def resize_crops(
    images: UInt8[np.ndarray, "n 3 h w"], crops: Sequence[Crop], out: UInt8[np.ndarray, "n 3 size size"]
) -> None:
    """Write the crop of each image into `out`: antialiased bicubic resize, mirrored if `flip` is set."""
    size = out.shape[-1]
    _resize(images, np.array(crops, np.int64), *_weights(images.shape[3], size), *_weights(images.shape[2], size), out)


@functools.cache
def _weights(longest: int, size: int) -> _Weights:
    every = [_integer_weights(length, size) for length in range(1, longest + 1)]
    found = [(whole != 0) for _, whole in every]
    starts = np.array([[0] * size, *(used.argmax(1) for used in found)], np.int32)
    ends = np.array([[0] * size, *(used.shape[1] - used[:, ::-1].argmax(1) for used in found)], np.int32)
    weights = np.zeros((longest + 1, size, _AT_ONCE * math.ceil((ends - starts).max() / _AT_ONCE)), np.int32)
    for length, (_, whole) in enumerate(every, start=1):
        for place, (start, end) in enumerate(zip(starts[length], ends[length], strict=True)):
            weights[length, place, : end - start] = whole[place, start:end]
    return _Weights(np.array([0, *(bits for bits, _ in every)], np.int32), starts, ends - starts, weights)


def _integer_weights(length: int, size: int) -> tuple[int, Float64[np.ndarray, "{size} {length}"]]:
    """The exponent p, and the weights of every pixel in units of 2⁻ᵖ, as torch rounds them."""
    scale = length / size
    centers = scale * (np.arange(size) + 0.5)
    weights = _cubic(np.abs(np.arange(length) - centers[:, None] + 0.5) / max(scale, 1.0))
    weights /= weights.sum(axis=1, keepdims=True)
    bits = next(bits for bits in range(23) if int(0.5 + weights.max() * 2 ** (bits + 1)) >= _SIXTEEN_BITS)
    units = weights * 2**bits
    return bits, np.copysign(np.floor(np.abs(units) + 0.5), units)


def _cubic(x: Float64[np.ndarray, ...]) -> Float64[np.ndarray, ...]:
    """Keys' kernel with a = −1/2, for distances x ≥ 0 in pixels."""
    near, far = (1.5 * x - 2.5) * x * x + 1, -0.5 * (((x - 5) * x + 8) * x - 4)
    return np.where(x < 1, near, np.where(x < 2, far, 0.0))


@numba.njit(nogil=True)
@no_type_check
def _sum(
    lines: Int32[np.ndarray, "_ stride"],
    start: int,
    taps: int,
    weights: Int32[np.ndarray, " most"],
    bits: int,
    total: Int32[np.ndarray, " n"],
) -> None:
    """The weighted sum of some lines, rounded to bytes. Four at a time; the last weights are zero if they are fewer."""
    half = np.int32(1 << (bits - 1))
    for i in range(len(total)):
        total[i] = half
    for tap in range(0, taps, _AT_ONCE):
        a, b, c, d = lines[start + tap], lines[start + tap + 1], lines[start + tap + 2], lines[start + tap + 3]
        v, w, x, y = weights[tap], weights[tap + 1], weights[tap + 2], weights[tap + 3]
        for i in range(len(total)):
            total[i] += a[i] * v + b[i] * w + c[i] * x + d[i] * y
    for i in range(len(total)):
        total[i] = min(max(total[i] >> bits, 0), 255)


@compiled_once(
    "void(uint8[:, :, :, :], int64[:, ::1], int32[::1], int32[:, ::1], int32[:, ::1], int32[:, :, ::1], "
    "int32[::1], int32[:, ::1], int32[:, ::1], int32[:, :, ::1], uint8[:, :, :, ::1])"
)
@no_type_check
def _resize(
    images: UInt8[np.ndarray, "n 3 h w"],
    crops: Int64[np.ndarray, "n 5"],
    across_bits: Int32[np.ndarray, " widths"],
    across_starts: Int32[np.ndarray, "widths size"],
    across_taps: Int32[np.ndarray, "widths size"],
    across: Int32[np.ndarray, "widths size _"],
    down_bits: Int32[np.ndarray, " heights"],
    down_starts: Int32[np.ndarray, "heights size"],
    down_taps: Int32[np.ndarray, "heights size"],
    down: Int32[np.ndarray, "heights size _"],
    out: UInt8[np.ndarray, "n 3 size size"],
) -> None:
    count, channels, tallest, widest = images.shape
    size = out.shape[3]
    columns = np.zeros((widest + _AT_ONCE, channels * tallest), np.int32)
    narrow = np.zeros((channels * tallest + _AT_ONCE, size), np.int32)
    column, row = np.empty(channels * tallest, np.int32), np.empty(size, np.int32)
    for i in range(count):
        top, left, height, width = crops[i, 0], crops[i, 1], crops[i, 2], crops[i, 3]
        for x in range(width):
            for channel in range(channels):
                for y in range(height):
                    columns[x, channel * height + y] = images[i, channel, top + y, left + x]
        total = column[: channels * height]
        for x in range(size):
            _sum(columns, across_starts[width, x], across_taps[width, x], across[width, x], across_bits[width], total)
            place = size - 1 - x if crops[i, 4] else x
            for y in range(len(total)):
                narrow[y, place] = total[y]
        for channel in range(channels):
            for y in range(size):
                start = channel * height + down_starts[height, y]
                _sum(narrow, start, down_taps[height, y], down[height, y], down_bits[height], row)
                for x in range(size):
                    out[i, channel, y, x] = row[x]
