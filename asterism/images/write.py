"""Writing images to files."""

from __future__ import annotations

from pathlib import Path

from jaxtyping import UInt8
from PIL import Image
from torch import Tensor


def to_pillow(image: UInt8[Tensor, "3 h w"]) -> Image.Image:
    return Image.fromarray(image.permute(1, 2, 0).contiguous().cpu().numpy())


def save_picture(image: UInt8[Tensor, "3 h w"], path: Path) -> None:
    to_pillow(image).save(path, quality=92)


def save_levels(levels: UInt8[Tensor, "h w"], path: Path) -> None:
    """A grey image, one value per pixel; PNG keeps the values."""
    Image.fromarray(levels.contiguous().cpu().numpy()).save(path)
