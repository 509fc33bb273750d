"""Photometric distortion of SSD (Liu et al., 2016) in the form that mmsegmentation uses for training images.

Each change happens with probability ½: brightness is shifted by up to 32 levels; contrast and saturation are scaled by
0.5 … 1.5; hues turn by up to a tenth of the circle. Contrast comes first or last, with equal probability.
Saturation scales the distance to each pixel's grey level, there that of HSV; nothing is rounded in between.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import UInt8
from torch import Tensor

from asterism.data.views.color import adjust_hue, adjust_saturation, to_uint8

DRAWS = 9  # numbers in [0, 1) that one image takes
_SHIFT = 32.0  # levels
_FACTOR = (0.5, 1.5)
_TURN = 0.1  # of the circle


def distorted(image: UInt8[Tensor, "3 h w"], draws: Sequence[float]) -> UInt8[Tensor, "3 h w"]:
    """The image with changes that are a function of the draws."""
    assert len(draws) == DRAWS
    levels = image[None].to(torch.float32)
    if draws[0] < 0.5:
        levels = (levels + (2 * draws[1] - 1) * _SHIFT).clamp_(0, 255)
    contrast_first = draws[2] < 0.5
    if contrast_first:
        levels = _contrast(levels, draws)
    if draws[5] < 0.5:
        levels = adjust_saturation(levels, [_between(draws[6])])
    if draws[7] < 0.5:
        levels = adjust_hue(levels, [(2 * draws[8] - 1) * _TURN])
    if not contrast_first:
        levels = _contrast(levels, draws)
    return to_uint8(levels)[0]


def _contrast(levels: Tensor, draws: Sequence[float]) -> Tensor:
    return (levels * _between(draws[4])).clamp_(0, 255) if draws[3] < 0.5 else levels


def _between(draw: float) -> float:
    return _FACTOR[0] + (_FACTOR[1] - _FACTOR[0]) * draw
