"""Gaussian blur: two passes of shifted sums."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Float64, Int64
from torch import Tensor

_REACH = 3.0  # the kernel ends at this many standard deviations: 0.3 % of its mass is cut off


def blur(levels: Float[Tensor, "n c h w"], sigmas: Sequence[float]) -> Float[Tensor, "n c h w"]:
    """Each image blurred with its own sigma, padded by reflection.

    Equal to torchvision's `gaussian_blur` with the same number of taps. PIL uses a different filter: three box blurs
    with the edge pixels repeated.
    """
    kernels, _ = half_kernels(sigmas, longest=min(levels.shape[2:]) - 1)
    weights = torch.from_numpy(kernels).to(levels).T[:, :, None, None, None].unbind()
    radius = len(weights) - 1
    padded = F.pad(levels, (radius, radius, radius, radius), mode="reflect")
    return _smooth_columns(_smooth_columns(padded, weights), weights)


def half_kernels(
    sigmas: Sequence[float], longest: int
) -> tuple[Float64[np.ndarray, "n taps"], Int64[np.ndarray, " n"]]:
    """The centre and one side of a Gaussian of total weight 1 for each sigma, cut where reflection padding would end,
    and their radii in pixels. Weights beyond the radius are zero."""
    sigma = np.array(sigmas)[:, None]
    radii = np.minimum(np.ceil(_REACH * sigma).astype(np.int64), longest)
    distance = np.arange(radii.max() + 1)
    side = np.exp(-0.5 * (distance / sigma) ** 2) * (distance <= radii)
    return side / (side[:, :1] + 2 * side[:, 1:].sum(1, keepdims=True)), radii[:, 0]


def _smooth_columns(levels: Float[Tensor, "n c h w"], weights: Sequence[Tensor]) -> Float[Tensor, "n c w smooth"]:
    """Weighted sums down the columns, transposed, so that a second call smooths the rows and transposes back."""
    radius = len(weights) - 1
    shifts = levels.unfold(2, levels.shape[2] - 2 * radius, 1).unbind(2)
    total = shifts[radius] * weights[0]
    for distance in range(1, radius + 1):
        total.addcmul_(shifts[radius - distance], weights[distance])
        total.addcmul_(shifts[radius + distance], weights[distance])
    return total
