"""How close an image is to its original: peak signal-to-noise ratio, structural similarity (Wang et al., 2004)."""

from __future__ import annotations

import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn import functional as F


def psnr(made: Float[Tensor, "b 3 h w"], images: Float[Tensor, "b 3 h w"]) -> Float[Tensor, " b"]:
    """−10 log₁₀ of the mean squared error of each image in decibels, for values in [0, 1]; infinite if equal.

    Differences are squared and summed in double precision.
    """
    error = (made.double() - images.double()).square().mean(dim=(1, 2, 3))
    return -10 * error.log10()


_WINDOW, _SIGMA = 11, 1.5  # of the Gaussian window, in pixels
_LEVELS = 255.0
_C1, _C2 = (0.01 * _LEVELS) ** 2, (0.03 * _LEVELS) ** 2
SMALLEST_SIDE = _WINDOW  # pixels; structural similarity is undefined for smaller images


def ssim(images: UInt8[Tensor, "b 3 h w"], originals: UInt8[Tensor, "b 3 h w"]) -> Float[Tensor, " b"]:
    """Structural similarity of each image, averaged over channels and all positions where the window fits."""
    x, y = images.double(), originals.double()
    mean_x, mean_y = _blurred(x), _blurred(y)
    variance_x, variance_y = _blurred(x * x) - mean_x**2, _blurred(y * y) - mean_y**2
    covariance = _blurred(x * y) - mean_x * mean_y
    likeness = (2 * mean_x * mean_y + _C1) * (2 * covariance + _C2)
    scale = (mean_x**2 + mean_y**2 + _C1) * (variance_x + variance_y + _C2)
    return (likeness / scale).flatten(1).mean(1)


def _blurred(x: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b 3 i j"]:
    offsets = torch.arange(_WINDOW, dtype=x.dtype, device=x.device) - _WINDOW // 2
    line = torch.exp(-(offsets**2) / (2 * _SIGMA**2))
    line = (line / line.sum()).expand(3, 1, 1, -1)
    return F.conv2d(F.conv2d(x, line, groups=3), line.mT, groups=3)
