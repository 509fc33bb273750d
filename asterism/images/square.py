"""The middle square of an image, at the size a network wants: the only centre crop."""

from __future__ import annotations

import torch.nn.functional as F
from jaxtyping import UInt8
from torch import Tensor


def usual_resize(size: int) -> int:
    """The shorter side before a middle square of `size` pixels is cut out.

    256 for 224, as published, and in that proportion for larger squares. Smaller encoders are trained on images that
    are small already, CIFAR's for example, whose things fill the frame: enlarging those only to cut their border off
    would lose a quarter of their pixels. They are taken whole.
    """
    return round(size * 256 / 224) if size >= 224 else size


def center_square(image: UInt8[Tensor, "3 h w"], size: int, resize: int) -> UInt8[Tensor, "3 {size} {size}"]:
    """Shorter side to `resize` (bicubic, antialiased), then the middle square; sides and offsets as in torchvision."""
    height, width = image.shape[1:]
    shorter = min(height, width)
    if shorter != resize:
        height, width = (resize if side == shorter else int(resize * side / shorter) for side in (height, width))
        image = F.interpolate(image[None], (height, width), mode="bicubic", antialias=True)[0]
    top, left = round((height - size) / 2), round((width - size) / 2)
    return image[:, top : top + size, left : left + size]
