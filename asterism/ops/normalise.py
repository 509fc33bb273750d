"""Conversion between pixels and a network's input: minus a mean, divided by a deviation, per channel.

>>> pixels = torch.tensor([[[0, 255]]] * 3, dtype=torch.uint8)
>>> normalise(pixels, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))[0].tolist()
[[-1.0, 1.0]]
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from asterism.ops.host import sent

Triple = tuple[float, float, float]  # one number per channel: red, green, blue

IMAGENET_MEAN: Triple = (0.485, 0.456, 0.406)  # of RGB in [0, 1]
IMAGENET_STD: Triple = (0.229, 0.224, 0.225)


def normalise(
    images: Shaped[Tensor, "*b c h w"], mean: Sequence[float], std: Sequence[float]
) -> Float[Tensor, "*b c h w"]:
    """From uint8, or floats in [0, 1], to a network's input."""
    if images.dtype == torch.uint8:
        pixels = images.float().div_(255)  # a copy, which the rest may overwrite
        return pixels.sub_(_channels(mean, pixels)).div_(_channels(std, pixels))
    return (images - _channels(mean, images)) / _channels(std, images)


def denormalise(
    pixels: Float[Tensor, "b c h w"], mean: Sequence[float], std: Sequence[float]
) -> Float[Tensor, "b c h w"]:
    """From a network's input back to [0, 1]."""
    return pixels * _channels(std, pixels) + _channels(mean, pixels)


def _channels(values: Sequence[float], like: Tensor) -> Tensor:
    return sent(torch.tensor(values, dtype=like.dtype)[:, None, None], like.device)
