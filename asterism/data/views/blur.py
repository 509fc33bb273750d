"""Gaussian blur as two passes of shifted sums."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

_REACH = 3.0  # the kernel ends at this many standard deviations


def blur(levels: Float[Tensor, "c h w"], sigma: float) -> Float[Tensor, "c h w"]:
    weights = kernel(sigma)
    radius = len(weights) - 1
    height, width = levels.shape[1:]
    padded = F.pad(levels, (radius, radius, radius, radius), mode="reflect")
    across = padded[:, :, radius : radius + width] * weights[0]
    for shift in range(1, radius + 1):
        across.add_(padded[:, :, radius - shift : radius - shift + width], alpha=weights[shift])
        across.add_(padded[:, :, radius + shift : radius + shift + width], alpha=weights[shift])
    down = across[:, radius : radius + height] * weights[0]
    for shift in range(1, radius + 1):
        down.add_(across[:, radius - shift : radius - shift + height], alpha=weights[shift])
        down.add_(across[:, radius + shift : radius + shift + height], alpha=weights[shift])
    return down


def kernel(sigma: float) -> list[float]:
    """The centre and one side of a sampled Gaussian whose sum is 1."""
    radius = math.ceil(_REACH * sigma)
    side = [math.exp(-0.5 * (x / sigma) ** 2) for x in range(radius + 1)]
    total = side[0] + 2 * sum(side[1:])
    return [weight / total for weight in side]
