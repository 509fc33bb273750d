"""The centre crop of an image at the input size of a network: the only implementation."""

from __future__ import annotations

import torch.nn.functional as F
from jaxtyping import UInt8
from torch import Tensor


def usual_resize(size: int) -> int:
    """The shorter side to resize to before a centre crop of `size` pixels.

    256 for 224, as published, and in that proportion for larger crops. Smaller encoders are trained on images that are
    already small, such as CIFAR's, whose objects fill the frame: enlarging these only to crop their border would lose a
    quarter of their pixels. They are not cropped.
    """
    return round(size * 256 / 224) if size >= 224 else size


def center_square(image: UInt8[Tensor, "3 h w"], size: int, resize: int) -> UInt8[Tensor, "3 {size} {size}"]:
    """Resize the shorter side to `resize` (bicubic, antialiased), then centre-crop, with torchvision's rounding."""
    height, width = image.shape[1:]
    shorter = min(height, width)
    if shorter != resize:
        height, width = (resize if side == shorter else int(resize * side / shorter) for side in (height, width))
        image = F.interpolate(image[None], (height, width), mode="bicubic", antialias=True)[0]
    top, left = round((height - size) / 2), round((width - size) / 2)
    return image[:, top : top + size, left : left + size]
