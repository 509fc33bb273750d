"""Crops of many small images, resized together by matrix products.

torch resizes bytes in two passes, with weights that are multiples of 2⁻ᵖ, and rounds to bytes after each pass. So a
pass adds integers, which float32 does exactly below 2²⁴, in any order. Hence both passes can be matrix products, equal
to torch's to the bit. The matrices also say where the crop is, and whether it is mirrored. Levels are shifted to
−128 … 127, which halves the sums.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from asterism.data.views.color import to_uint8
from asterism.data.views.sample import Crop

LONGEST = 48  # side of images and views up to which this is faster than one call of torch for each
_MIDDLE = 128
_EXACT = 1 << 24  # up to which float32 holds all integers
_SIXTEEN_BITS = 1 << 15  # torch's weights are below, in units of 2⁻ᵖ


@dataclass(frozen=True)
class _Pass:
    """How a side of `length` pixels, or a part of it, becomes one of `size`.

    The first index of each is the number of pixels of the part, the second whether it is mirrored.
    """

    weights: Float[Tensor, "parts 2 size starts length"]  # starts: `length` minus the first pixel of the part
    rounding: Float[Tensor, "parts 2 size"]  # added before rounding down


def can_resize(images: Sequence[UInt8[Tensor, "3 _ _"]], size: int) -> bool:
    """Whether the images have one size, and the passes are exact and worthwhile for it."""
    shape = images[0].shape
    small = max(*shape[1:], size) <= LONGEST and all(image.shape == shape for image in images)
    return small and all(_pass(length, size) is not None for length in shape[1:])


def resize_crops(
    images: Sequence[UInt8[Tensor, "3 h w"]], crops: Sequence[Crop], size: int
) -> UInt8[Tensor, "n 3 {size} {size}"]:
    """The crop of each image: antialiased bicubic resize, mirrored if `flip` is set. See `can_resize`."""
    count, height, width = len(images), *images[0].shape[1:]
    tops, lefts, heights, widths, flips = torch.tensor(crops).unbind(1)
    horizontal, vertical = _pass(width, size), _pass(height, size)
    assert horizontal is not None
    assert vertical is not None
    rows = torch.stack(list(images)).permute(0, 2, 1, 3).to(torch.float32).sub_(_MIDDLE)
    across = horizontal.weights[widths, flips, :, width - lefts]
    down = vertical.weights[heights, 0, :, height - tops]
    narrow = torch.baddbmm(horizontal.rounding[widths, flips, None], rows.reshape(count, -1, width), across.mT)
    _round_down_(narrow)
    levels = torch.baddbmm(vertical.rounding[heights, 0, :, None], down, narrow.view(count, height, 3 * size))
    _round_down_(levels).add_(_MIDDLE)
    return to_uint8(levels.view(count, size, 3, size)).transpose(1, 2)


def _round_down_(levels: Tensor) -> Tensor:
    """To whole levels in the range of bytes, shifted by 128."""
    return levels.floor_().clamp_(-_MIDDLE, _MIDDLE - 1)


@functools.cache
def _pass(length: int, size: int) -> _Pass | None:
    """None if float32 would have to round."""
    weights, rounding = torch.zeros(length + 1, 2, size, 2 * length), torch.zeros(length + 1, 2, size)
    for part in range(1, length + 1):
        bits, whole = _integer_weights(part, size)
        # ⌊(Σ w·x + 2ᵖ⁻¹) / 2ᵖ⌋ − 128, with x − 128 in place of x; Σ w is not exactly 2ᵖ.
        shift = _MIDDLE * (whole.sum(dim=1) - 2**bits) + 2 ** (bits - 1)
        if (_MIDDLE * whole.abs().sum(dim=1) + shift.abs()).max() >= _EXACT:
            return None
        weights[part, 0, :, length : length + part] = whole / 2**bits
        rounding[part, 0] = shift / 2**bits
    weights[:, 1], rounding[:, 1] = weights[:, 0].flip(1), rounding[:, 0].flip(1)
    return _Pass(weights.unfold(3, length, 1), rounding)


def _integer_weights(length: int, size: int) -> tuple[int, Float[Tensor, "{size} {length}"]]:
    """The exponent p, and the weights of every pixel in units of 2⁻ᵖ, as torch rounds them."""
    scale = length / size
    centers = scale * (torch.arange(size, dtype=torch.float64) + 0.5)
    distances = torch.arange(length, dtype=torch.float64) - centers[:, None] + 0.5
    weights = _cubic(distances.abs() / max(scale, 1.0))
    weights /= weights.sum(dim=1, keepdim=True)
    bits = next(bits for bits in range(23) if int(0.5 + float(weights.max()) * 2 ** (bits + 1)) >= _SIXTEEN_BITS)
    units = weights * 2**bits
    return bits, (units.abs() + 0.5).floor().copysign(units)


def _cubic(x: Float[Tensor, ...]) -> Float[Tensor, ...]:
    """Keys' kernel with a = −1/2, for distances x ≥ 0 in pixels."""
    near, far = (1.5 * x - 2.5) * x * x + 1, -0.5 * (((x - 5) * x + 8) * x - 4)
    return torch.where(x < 1, near, torch.where(x < 2, far, 0.0))
