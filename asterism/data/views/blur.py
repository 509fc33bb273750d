"""Gaussian blur: two passes of shifted sums."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import zip_longest

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

_REACH = 3.0  # the kernel ends at this many standard deviations: 0.3 % of its mass is cut off


def blur(levels: Float[Tensor, "n c h w"], sigmas: Sequence[float]) -> Float[Tensor, "n c h w"]:
    """Each image blurred with its own sigma, padded by reflection.

    Equal to torchvision's `gaussian_blur` with the same number of taps. PIL uses a different filter: three box blurs
    with the edge pixels repeated.
    """
    kernels = [half_kernel(sigma, longest=min(levels.shape[2:]) - 1) for sigma in sigmas]
    weights = torch.tensor(list(zip_longest(*kernels, fillvalue=0.0)))[:, :, None, None, None].unbind()
    radius = len(weights) - 1
    padded = F.pad(levels, (radius, radius, radius, radius), mode="reflect")
    return _smooth_columns(_smooth_columns(padded, weights), weights)


def half_kernel(sigma: float, longest: int) -> list[float]:
    """The centre and one side of a Gaussian of total weight 1, cut where reflection padding would end."""
    radius = min(math.ceil(_REACH * sigma), longest)
    side = [math.exp(-0.5 * (x / sigma) ** 2) for x in range(radius + 1)]
    total = side[0] + 2 * sum(side[1:])
    return [weight / total for weight in side]


def _smooth_columns(levels: Float[Tensor, "n c h w"], weights: Sequence[Tensor]) -> Float[Tensor, "n c w smooth"]:
    """Weighted sums down the columns, transposed, so that a second call smooths the rows and transposes back."""
    radius = len(weights) - 1
    shifts = levels.unfold(2, levels.shape[2] - 2 * radius, 1).unbind(2)
    total = shifts[radius] * weights[0]
    for distance in range(1, radius + 1):
        total.addcmul_(shifts[radius - distance], weights[distance])
        total.addcmul_(shifts[radius + distance], weights[distance])
    return total
