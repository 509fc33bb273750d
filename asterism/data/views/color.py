"""Colours of a view: planar float32 levels in [0, 255], rounded to uint8 once, at the end.

torchvision rounds down to uint8 after every operation; here nothing is lost in between. One operation alone agrees with
torchvision's within 1 level.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from asterism.data.views.blur import blur
from asterism.data.views.sample import Colors

_LUMA = (0.2989, 0.587, 0.114)  # ITU-R 601, the digits torchvision uses


def recolor(pixels: UInt8[Tensor, "3 h w"], colors: Colors) -> UInt8[Tensor, "3 h w"]:
    """The view in its drawn colours."""
    if colors == Colors():
        return pixels
    levels = pixels.to(torch.float32)
    for name, factor in colors.adjustments:
        levels = _ADJUST[name](levels, factor)
    if colors.grayscale:
        levels = luma(levels)
    if colors.blur_sigma is not None:
        levels = blur(levels, colors.blur_sigma)
    if colors.solarize_threshold is not None:
        levels = solarize(levels, colors.solarize_threshold)
    return levels.round_().to(torch.uint8).expand(3, -1, -1).contiguous()


def adjust_brightness(levels: Float[Tensor, "3 h w"], factor: float) -> Float[Tensor, "3 h w"]:
    return levels.mul_(factor).clamp_(0, 255)


def adjust_contrast(levels: Float[Tensor, "3 h w"], factor: float) -> Float[Tensor, "3 h w"]:
    """Away from the mean grey level, or towards it."""
    mean = float(luma(levels).mean())
    return levels.mul_(factor).add_((1 - factor) * mean).clamp_(0, 255)


def adjust_saturation(levels: Float[Tensor, "3 h w"], factor: float) -> Float[Tensor, "3 h w"]:
    """Away from each pixel's grey level, or towards it."""
    gray = luma(levels)
    return levels.mul_(factor).add_(gray, alpha=1 - factor).clamp_(0, 255)


def adjust_hue(levels: Float[Tensor, "3 h w"], factor: float) -> Float[Tensor, "3 h w"]:
    """Turn the hue by `factor` of a full circle, keeping each pixel's largest and smallest level, as HSV does."""
    red, green, blue = levels
    largest, smallest = levels.amax(0), levels.amin(0)
    chroma = largest - smallest
    angle = torch.where(
        red == largest, green - blue, torch.where(green == largest, blue - red + 2 * chroma, red - green + 4 * chroma)
    )
    angle += 6 * factor * chroma
    angle = torch.where(angle < 0, angle + 6 * chroma, angle)
    angle = torch.where(angle > 6 * chroma, angle - 6 * chroma, angle)
    zero = torch.zeros_like(chroma)
    r = torch.clamp((angle - 3 * chroma).abs() - chroma, zero, chroma)
    g = torch.clamp(2 * chroma - (angle - 2 * chroma).abs(), zero, chroma)
    b = torch.clamp(2 * chroma - (angle - 4 * chroma).abs(), zero, chroma)
    return torch.stack((r, g, b)).add_(smallest)


def luma(levels: Float[Tensor, "3 h w"]) -> Float[Tensor, "1 h w"]:
    red, green, blue = levels
    return (red * _LUMA[0]).add_(green, alpha=_LUMA[1]).add_(blue, alpha=_LUMA[2])[None]


def solarize(levels: Float[Tensor, "c h w"], threshold: int) -> Float[Tensor, "c h w"]:
    """Invert the levels from `threshold` on."""
    return torch.where(levels >= threshold, 255 - levels, levels)


_ADJUST = {
    "brightness": adjust_brightness,
    "contrast": adjust_contrast,
    "saturation": adjust_saturation,
    "hue": adjust_hue,
}
