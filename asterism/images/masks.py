"""Mask files: palette or grey images whose values are numbers, or colour images with one colour per object.

`read_mask` numbers the objects of one image; `read_labels` returns the stored values, which have the same meaning in
every mask of a data set.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int64, Integer
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from asterism.errors import UserError
from asterism.images.bad_image import BadImage
from asterism.images.decode import opened, read_image_file
from asterism.images.palette import palette

VOID = 255  # unlabelled pixels, in masks that also have other objects; they are ignored
_MOST_VALUES = 64  # more are shades from anti-aliased outlines, not objects
_INDEX_MODES = ("P", "L", "1", "I", "I;16", "I;16B", "I;16L", "LA", "PA")
_COLOUR_MODES = ("RGB", "RGBA", "RGBX", "CMYK", "YCbCr")


def read_mask(path: Path) -> Int64[Tensor, "h w"]:
    """The number of the object that each pixel belongs to, 0 for background.

    Palette and grey images are read as indices, never as colours. In an RGB image black is background and every other
    colour is an object; objects are numbered in order of red, then green, then blue.
    """
    values, in_colour = read_values(path)
    if len(np.unique(values)) > _MOST_VALUES:
        raise UserError(
            f"the mask {path} has {len(np.unique(values))} different values, more than {_MOST_VALUES}: it looks "
            "smoothed or compressed. Save it as PNG without anti-aliasing, one value or colour per object"
        )
    return torch.from_numpy(_ranks(values) if in_colour else values)


def mask_size(path: Path) -> tuple[int, int]:
    """Height and width, from the header alone."""
    try:
        with opened(read_image_file(path, str(path)), str(path)) as image:
            return image.height, image.width
    except BadImage as error:
        raise UserError(f"cannot read the mask {error}") from None


def read_labels(path: Path) -> NDArray[np.int64]:
    """The values of an index image, palette or grey."""
    values, in_colour = read_values(path)
    if in_colour:
        raise UserError(f"the mask {path} is a colour image; masks must be index images, one number per pixel")
    return values


def read_values(path: Path) -> tuple[NDArray[np.int64], bool]:
    """The indices of an image, or its colours as 0xRRGGBB; and whether they are colours. Transparency is ignored."""
    try:
        with opened(read_image_file(path, str(path)), str(path)) as image:
            if image.mode in _INDEX_MODES:
                values = np.asarray(image)
                return (values if values.ndim == 2 else values[:, :, 0]).astype(np.int64), False
            if image.mode not in _COLOUR_MODES:
                raise BadImage(
                    str(path),
                    f"its pixels are of the kind {image.mode!r}"
                    f"{', floating-point numbers' if image.mode == 'F' else ''}; save it as PNG, with one whole number "
                    "or colour per object",
                )
            colours = np.asarray(image.convert("RGB"))
    except BadImage as error:
        raise UserError(f"cannot read the mask {error}") from None
    red, green, blue = (colours[:, :, channel].astype(np.int64) for channel in range(3))
    return red << 16 | green << 8 | blue, True


def white_as_object(mask: Int64[Tensor, "h w"], values: set[int]) -> Int64[Tensor, "h w"]:
    """The mask with 255 as object 1, if `values` (of all masks that belong together) are only 0 and 255."""
    return torch.where(mask == VOID, 1, mask) if values <= {0, VOID} else mask


def save_mask(mask: Integer[Tensor, "h w"], path: Path, colours: Sequence[tuple[int, int, int]] | None = None) -> None:
    """Save a palette PNG: its values are the numbers, its palette the colours of the overlays, or those given."""
    image = Image.fromarray(mask.cpu().numpy().astype(np.uint8))
    image.putpalette([level for colour in colours or palette(256) for level in colour])
    image.save(path)


def _ranks(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """0 stays 0; other values become 1, 2, … in ascending order."""
    found = np.unique(values)
    return np.where(values > 0, np.searchsorted(found[found > 0], values) + 1, 0)
