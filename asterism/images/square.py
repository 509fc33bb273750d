"""The middle square of an image, at the size a network wants: the only centre crop."""

from __future__ import annotations

import torch.nn.functional as F
from jaxtyping import UInt8
from torch import Tensor


def center_square(image: UInt8[Tensor, "3 h w"], size: int, resize: int) -> UInt8[Tensor, "3 {size} {size}"]:
    """Shorter side to `resize` (bicubic, antialiased), then the middle square; sides and offsets as in torchvision."""
    height, width = image.shape[1:]
    shorter = min(height, width)
    if shorter != resize:
        height, width = (resize if side == shorter else int(resize * side / shorter) for side in (height, width))
        image = F.interpolate(image[None], (height, width), mode="bicubic", antialias=True)[0]
    top, left = round((height - size) / 2), round((width - size) / 2)
    return image[:, top : top + size, left : left + size]
