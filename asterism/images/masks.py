"""Masks as people store them: palette or grey images whose values are numbers of objects, or one colour per object."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int64
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from asterism.errors import UserError
from asterism.images.palette import palette

VOID = 255  # pixels of which nothing is said, in masks that have other objects too
_MOST_COLOURS = 64  # more are shades at smoothed outlines, not objects


def read_mask(path: Path) -> Int64[Tensor, "h w"]:
    """The number of the object that each pixel belongs to, 0 for none.

    Palette and grey images are read as the indices they hold, never as colours. In an RGB image black is nothing and
    every other colour is an object, numbered by its red, then green, then blue.
    """
    try:
        with Image.open(path) as image:
            if image.mode in ("P", "L", "1", "I", "I;16"):
                values = np.asarray(image).astype(np.int64)
            else:
                values = _colours_as_numbers(np.asarray(image.convert("RGB")))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise UserError(f"cannot read the mask {path}: {error}") from None
    if len(np.unique(values)) > _MOST_COLOURS:
        raise UserError(
            f"the mask {path} has {len(np.unique(values))} different values, more than {_MOST_COLOURS}: it looks "
            "smoothed or compressed. Save it as PNG without anti-aliasing, one value or colour per object"
        )
    return torch.from_numpy(values)


def white_as_object(mask: Int64[Tensor, "h w"], values: set[int]) -> Int64[Tensor, "h w"]:
    """The mask with 255 as object 1, where `values` (of all masks that belong together) are 0 and 255 alone."""
    return torch.where(mask == VOID, 1, mask) if values <= {0, VOID} else mask


def save_mask(mask: Int64[Tensor, "h w"], path: Path) -> None:
    """A palette PNG: its values are the numbers, and it shows in the colours of the overlays."""
    image = Image.fromarray(mask.cpu().numpy().astype(np.uint8))
    image.putpalette([level for colour in palette(256) for level in colour])
    image.save(path)


def _colours_as_numbers(pixels: NDArray[np.uint8]) -> NDArray[np.int64]:
    packed = (pixels.astype(np.int64) * np.array([1 << 16, 1 << 8, 1])).sum(axis=2)
    found = np.unique(packed)
    colours = found[found > 0]
    return np.where(packed > 0, np.searchsorted(colours, packed) + 1, 0)
