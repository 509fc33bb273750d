"""Conversion between pixels in [0, 1] and a network's input: minus a mean, divided by a deviation, per channel."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor


def normalise(
    images: Float[Tensor, "b c h w"], mean: Sequence[float], std: Sequence[float]
) -> Float[Tensor, "b c h w"]:
    """From [0, 1] to a network's input."""
    return (images - _channels(mean, images)) / _channels(std, images)


def denormalise(
    pixels: Float[Tensor, "b c h w"], mean: Sequence[float], std: Sequence[float]
) -> Float[Tensor, "b c h w"]:
    """From a network's input back to [0, 1]."""
    return pixels * _channels(std, pixels) + _channels(mean, pixels)


def _channels(values: Sequence[float], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device)[:, None, None]
