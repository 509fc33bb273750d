"""Reading and writing the pictures that tools work on; mistakes name the file."""

from __future__ import annotations

from pathlib import Path

from jaxtyping import UInt8
from PIL import Image
from torch import Tensor

from asterism.errors import UserError
from asterism.images.bad_image import BadImage
from asterism.images.decode import decode


def read_picture(path: Path) -> UInt8[Tensor, "3 h w"]:
    try:
        return decode(path, str(path))
    except BadImage as error:
        raise UserError(f"cannot read the image {error}") from None


def to_pillow(image: UInt8[Tensor, "3 h w"]) -> Image.Image:
    return Image.fromarray(image.permute(1, 2, 0).contiguous().cpu().numpy())


def save_picture(image: UInt8[Tensor, "3 h w"], path: Path) -> None:
    to_pillow(image).save(path, quality=92)
