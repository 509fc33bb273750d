"""Colours of a view: planar float32 levels in [0, 255], rounded to uint8 once, at the end.

torchvision rounds down to uint8 after every operation; here nothing is lost in between. Each operation alone agrees
with torchvision's, on tensors and on PIL images, within 1 level (factors up to 2), with one exception: PIL turns hues
in 8-bit HSV, which is 1 to 2 levels off on average and up to 16. Solarize is equal.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from asterism.data.views.blur import blur
from asterism.data.views.sample import Colors

_LUMA = (0.2989, 0.587, 0.114)  # ITU-R 601, the digits torchvision uses
_PEAKS = (0.0, 2.0, -2.0)  # hues of red, green and blue, in sixths of the circle


def recolor(pixels: UInt8[Tensor, "3 h w"], colors: Colors) -> UInt8[Tensor, "3 h w"]:
    """The view in its drawn colours."""
    if colors.adjustments or colors.grayscale or colors.blur_sigma is not None:
        levels = pixels.to(torch.float32)
        for name, factor in colors.adjustments:
            levels = _ADJUST[name](levels, factor)
        if colors.grayscale:
            levels = luma(levels)
        if colors.blur_sigma is not None:
            levels = blur(levels, colors.blur_sigma)
        pixels = to_uint8(levels).expand(3, -1, -1).contiguous()
    if colors.solarize_threshold is not None:
        pixels = solarize(pixels, colors.solarize_threshold)
    return pixels


def to_uint8(levels: Float[Tensor, "c h w"]) -> UInt8[Tensor, "c h w"]:
    """Rounded levels. By way of int16, because torch turns float into uint8 one number at a time."""
    return levels.round_().to(torch.int16).to(torch.uint8)


def adjust_brightness(levels: Float[Tensor, "3 h w"], factor: float) -> Float[Tensor, "3 h w"]:
    """Towards black, or away from it."""
    return _in_range(levels.mul_(factor), factor)


def adjust_contrast(levels: Float[Tensor, "3 h w"], factor: float) -> Float[Tensor, "3 h w"]:
    """Away from the mean grey level, or towards it."""
    mean = sum(share * channel for share, channel in zip(_LUMA, levels.mean((1, 2)).tolist(), strict=True))
    return _in_range(levels.mul_(factor).add_((1 - factor) * mean), factor)


def adjust_saturation(levels: Float[Tensor, "3 h w"], factor: float) -> Float[Tensor, "3 h w"]:
    """Away from each pixel's grey level, or towards it."""
    return _in_range(torch.lerp(luma(levels), levels, factor, out=levels), factor)


def adjust_hue(levels: Float[Tensor, "3 h w"], factor: float) -> Float[Tensor, "3 h w"]:
    """Turn the hue by `factor` of a circle, keeping each pixel's largest level M and smallest m, as HSV does.

    Count the hue h in sixths of the circle from red, −3 ≤ h ≤ 3, and let C = M − m. A channel that peaks at hue c (red
    0, green 2, blue −2) has the level m + C·clamp(2 − |h − c|, 0, 1), the distance taken around the circle: for any
    |x| ≤ 6 it is 3 − ||x| − 3|. Conversely h has the sign of g − b, and C·|h| = M − 2m − r + g + b. All is kept times
    C, so nothing is divided and greys need no care. A turn by a third of the circle only permutes the channels, which
    leaves at most one sixth to turn and keeps |x| ≤ 6.
    """
    thirds = round(3 * factor)
    turn = 6 * factor - 2 * thirds
    offsets = torch.tensor([[[turn - _PEAKS[(channel - thirds) % 3]]] for channel in range(3)])
    red, green, blue = levels
    largest, smallest = levels.amax(0), levels.amin(0)
    chroma = largest - smallest
    hue = (largest - red).add_(green).add_(blue).sub_(smallest, alpha=2).copysign_(green - blue)
    torch.addcmul(hue, chroma, offsets, out=levels)
    levels.abs_().sub_(chroma, alpha=3).abs_().add_(smallest - chroma)
    return torch.clamp(levels, smallest, largest, out=levels)


def luma(levels: Float[Tensor, "3 h w"]) -> Float[Tensor, "1 h w"]:
    red, green, blue = levels
    return (red * _LUMA[0]).add_(green, alpha=_LUMA[1]).add_(blue, alpha=_LUMA[2])[None]


def solarize(pixels: UInt8[Tensor, "3 h w"], threshold: int) -> UInt8[Tensor, "3 h w"]:
    """Invert the levels from `threshold` on: 255 − x is x with all bits flipped."""
    flipped_bits = (pixels >= threshold).view(torch.uint8).neg_()  # 255 where inverted, else 0
    return flipped_bits.bitwise_xor_(pixels)


def _in_range(levels: Float[Tensor, "3 h w"], factor: float) -> Float[Tensor, "3 h w"]:
    """Only factors above 1 lead out of the range of levels: those below mix two levels that lie in it."""
    return levels.clamp_(0, 255) if factor > 1 else levels


_ADJUST = {
    "brightness": adjust_brightness,
    "contrast": adjust_contrast,
    "saturation": adjust_saturation,
    "hue": adjust_hue,
}
