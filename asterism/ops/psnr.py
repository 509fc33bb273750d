"""Peak signal-to-noise ratio between two images."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor


def psnr(made: Float[Tensor, "b 3 h w"], images: Float[Tensor, "b 3 h w"]) -> Float[Tensor, " b"]:
    """−10 log₁₀ of the mean squared error of each image in decibels, for values in [0, 1]; infinite if equal.

    Differences are squared and summed in double precision.
    """
    error = (made.double() - images.double()).square().mean(dim=(1, 2, 3))
    return -10 * error.log10()
