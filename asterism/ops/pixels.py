"""Pixels as people see them, in [0, 1], and as networks do: minus a mean and divided by a deviation, per channel."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor


def normalise(
    images: Float[Tensor, "b c h w"], mean: Sequence[float], std: Sequence[float]
) -> Float[Tensor, "b c h w"]:
    """From [0, 1] to what a network sees."""
    return (images - _channels(mean, images)) / _channels(std, images)


def denormalise(
    pixels: Float[Tensor, "b c h w"], mean: Sequence[float], std: Sequence[float]
) -> Float[Tensor, "b c h w"]:
    """From what a network sees back to [0, 1]."""
    return pixels * _channels(std, pixels) + _channels(mean, pixels)


def _channels(values: Sequence[float], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device)[:, None, None]
