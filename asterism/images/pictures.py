"""Conversion of user input — paths, PIL images, arrays, tensors, one or many — to 8-bit RGB images.

Files and PIL images are read by the rules of `asterism.images.decode`, so that a path gives the same pixels here as in
every data set. Arrays and tensors are [h, w], [h, w, 3] or [3, h, w], of type uint8 or float in [0, 1]. The functions
take any object and reject unsupported ones with a clear message; `Pictures` is the type of supported ones.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from asterism.errors import UserError
from asterism.images.bad_image import BadImage
from asterism.images.centre_crop import center_square
from asterism.images.decode import decode, from_pillow
from asterism.images.limits import check_size

Picture = str | os.PathLike[str] | Image.Image | NDArray[Any] | Tensor
Pictures = Picture | Iterable[Picture]  # an array or tensor of four axes is a batch

_KINDS = (str, os.PathLike, Image.Image, np.ndarray, Tensor)
_HALF_LEVEL = 0.5 / 255  # floats may exceed [0, 1] by this much: rounding to 8 bits removes it
_FORMS = (
    "a path, a PIL image, an array or tensor [h, w, 3] or [3, h, w], a list of these, or a batch [b, 3, h, w] or "
    "[b, h, w, 3]"
)


def read_picture(picture: object) -> UInt8[Tensor, "3 h w"]:
    """One image at its own size."""
    if isinstance(picture, str | os.PathLike):
        return _file(Path(picture))
    if isinstance(picture, Image.Image):
        return _from_pillow(picture)
    if isinstance(picture, np.ndarray | Tensor):
        return _from_array(_tensor(picture))
    raise _no_picture(picture)


def batch_of(
    pictures: object, size: int
) -> UInt8[Tensor, "b 3 {size} {size}"] | UInt8[Tensor, "b 3 h w"] | Float[Tensor, "b 3 h w"]:
    """Images for a network: a batch array keeps its size and type; other images are centre-cropped to `size` pixels,
    and a single image becomes a batch of one."""
    if isinstance(pictures, np.ndarray | Tensor) and pictures.ndim == 4:
        return _batch(_tensor(pictures))
    return torch.stack([center_square(image, size, size) for image in map(read_picture, as_list(pictures))])


def as_list(pictures: object) -> list[Picture]:
    """One or many images as a list; an empty one is rejected."""
    if isinstance(pictures, _KINDS):
        if isinstance(pictures, np.ndarray | Tensor) and pictures.ndim == 4:
            return list(_batch(_tensor(pictures)))
        return [pictures]
    if isinstance(pictures, dict | set | frozenset | bytes | bytearray) or not isinstance(pictures, Iterable):
        raise UserError(f"{_shown(pictures)} is not an image or a list of images; give {_FORMS}")
    listed = list(pictures)
    if not listed:
        raise UserError(f"there are no images: the {type(pictures).__name__} is empty; give {_FORMS}")
    for picture in listed:
        if not isinstance(picture, _KINDS):
            raise _no_picture(picture)
    return listed


def _file(path: Path) -> UInt8[Tensor, "3 h w"]:
    try:
        return decode(path, str(path))
    except BadImage as error:
        hint = "; name its images, or embed it with `asterism embed`" if path.is_dir() else ""
        raise UserError(f"cannot read the image {error}{hint}") from None


def _from_pillow(image: Image.Image) -> UInt8[Tensor, "3 h w"]:
    name = getattr(image, "filename", "") or "in memory"
    try:
        return from_pillow(image, name)
    except BadImage as error:
        raise UserError(f"cannot read the image {error}") from None
    except (OSError, SyntaxError, ValueError) as error:
        raise UserError(f"cannot read the image {name}: {error}") from None


def _tensor(array: NDArray[Any] | Tensor) -> Tensor:
    if isinstance(array, Tensor):
        return array.detach()
    if array.dtype.kind not in "uifb" or array.dtype.itemsize > 8:
        raise UserError(f"an array of type {array.dtype} is not an image; pixels are uint8, or float in [0, 1]")
    return torch.from_numpy(
        np.array(array, dtype=array.dtype.newbyteorder("="), order="C")
    )  # PIL's arrays are read-only


def _from_array(array: Tensor) -> UInt8[Tensor, "3 h w"]:
    shape = list(array.shape)
    if array.ndim == 2:
        array = array.expand(3, *shape)
    elif array.ndim != 3 or (shape[0] != 3 and shape[2] != 3):
        raise UserError(f"{_wrong_shape(shape)}; one image is [h, w, 3], [3, h, w] or, if grey, [h, w]")
    elif shape[0] != 3:
        array = array.permute(2, 0, 1)
    try:
        check_size(array.shape[2], array.shape[1], f"the array of shape {shape}")
    except BadImage as error:
        raise UserError(str(error)) from None
    _check_values(array)
    if array.dtype == torch.uint8:
        return array.cpu()
    return (array.float().clamp(0, 1) * 255).round().to(torch.uint8).cpu()


def _batch(array: Tensor) -> Tensor:
    shape = list(array.shape)
    if 0 in shape:
        raise UserError(f"there are no images: the batch has the shape {shape}")
    first, last = shape[1] == 3, shape[3] == 3
    if first == last:
        reason = "may be [b, 3, h, w] or [b, h, w, 3]" if first else "has no axis of 3 channels"
        raise UserError(
            f"the batch of shape {shape} {reason}; give RGB images [b, 3, h, w] of more than 3 pixels a side"
        )
    _check_values(array)
    return array if first else array.permute(0, 3, 1, 2)


def _check_values(array: Tensor) -> None:
    if array.dtype == torch.uint8:
        return
    if not array.is_floating_point():
        fix = "convert 0 … 255 to uint8" if array.dtype != torch.bool else "multiply by 255 and convert to uint8"
        raise UserError(f"expected pixels of type uint8, or float in [0, 1], got {_dtype(array)}; {fix}")
    low, high = float(array.min()), float(array.max())
    if not (low >= -_HALF_LEVEL and high <= 1 + _HALF_LEVEL):  # NaN fails too
        fix = "divide levels by 255" if low >= 0 and high <= 255 else "undo any normalisation, or clamp them"
        raise UserError(f"expected float pixels in [0, 1], got values from {low:.4g} to {high:.4g}; {fix}")


def _wrong_shape(shape: list[int]) -> str:
    channels = [side for side in (shape[0], shape[-1]) if side in (1, 2, 4)] if len(shape) == 3 else []
    hint = f" ({channels[0]} channels: convert to RGB first, as PIL's image.convert('RGB') does)" if channels else ""
    return f"expected RGB images, got the shape {shape}{hint}"


def _dtype(array: Tensor) -> str:
    return str(array.dtype).removeprefix("torch.")


def _no_picture(value: object) -> UserError:
    return UserError(f"{_shown(value)} is not an image; give {_FORMS}")


def _shown(value: object) -> str:
    text = " ".join(repr(value).split())
    return f"{type(value).__name__} {text if len(text) <= 40 else text[:37] + '...'}"
