"""Pictures as people hold them — paths, PIL images, arrays — as square RGB tensors for an encoder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor

from asterism.errors import UserError

Picture = str | Path | Image.Image | NDArray[Any] | Tensor


def square_picture(picture: Picture, size: int) -> UInt8[Tensor, "3 {size} {size}"]:
    """The middle square of a picture, its shorter side resized to `size` (bicubic, antialiased) unless it has it."""
    image = _rgb(picture)
    scale = size / min(image.size)
    if scale != 1:
        width, height = (max(size, round(side * scale)) for side in image.size)
        image = image.resize((width, height), Image.Resampling.BICUBIC)
    left, top = ((side - size) // 2 for side in image.size)
    image = image.crop((left, top, left + size, top + size))
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def _rgb(picture: Picture) -> Image.Image:
    if isinstance(picture, Image.Image):
        return _colours(ImageOps.exif_transpose(picture))
    if isinstance(picture, str | Path):
        return _open(Path(picture))
    return _from_array(picture)


def _open(path: Path) -> Image.Image:
    try:
        with Image.open(path) as image:
            return _colours(ImageOps.exif_transpose(image))
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:  # Pillow meets broken PNGs with a SyntaxError
        raise UserError(f"cannot read the image {path}: {error}") from None


def _colours(image: Image.Image) -> Image.Image:
    """RGB: transparency laid over white, 16 bits reduced to 8."""
    if image.mode.startswith("I;16"):
        return Image.fromarray(((np.asarray(image).astype(np.uint32) + 128) // 257).astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB")
    return image.convert("RGB")


def _from_array(picture: NDArray[Any] | Tensor) -> Image.Image:
    """Arrays are [h, w] or [h, w, 3], tensors [3, h, w]; uint8, or floats in [0, 1]."""
    array = picture.detach().cpu().permute(1, 2, 0).numpy() if isinstance(picture, Tensor) else picture
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] != 3):
        raise UserError(f"expected an array [h, w, 3] or a tensor [3, h, w], got the shape {list(picture.shape)}")
    if array.dtype.kind == "f":
        array = np.rint(array.clip(0, 1) * 255)
    elif array.dtype != np.uint8:
        raise UserError(f"expected pixels of type uint8, or float in [0, 1], got {array.dtype}")
    return Image.fromarray(array.astype(np.uint8)).convert("RGB")
