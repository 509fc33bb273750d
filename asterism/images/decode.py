"""Decoding an image file of any supported format to 8-bit RGB pixels: the only decoder.

JPEG is decoded by the libjpeg-turbo in torchvision, everything else by Pillow. Where a format is ambiguous:

- EXIF orientation is applied; only the first frame or page is used; colour profiles are ignored.
- Transparent images are composited over white.
- 16 bits per channel: the full range 0…65535 becomes 0…255.
- 32-bit integers: like 16 bits if all values are in 0…65535, else the smallest value becomes 0 and the largest 255.
- Floats: [0, 1] becomes 0…255; values within [0, 255] are used as they are; any other range is stretched from the
  smallest value to the largest. Values that are not finite count as the smallest.
- A CMYK JPEG has inverted inks if it carries Adobe's marker, as Photoshop writes it, and plain inks otherwise.

An image that cannot be decoded completely is a `BadImage`: half an image is worse than none. Corruption inside the
compressed data of an otherwise complete file affects only its pixels and is not detected.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import stat
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from asterism.images.bad_image import BadImage

MIN_SIDE = 8  # pixels; anything smaller is an icon or an accident, and its crops carry no information
MAX_PIXELS = 178_956_970  # half a gigabyte of RGB; Pillow's own limit against decompression bombs
SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".dib", ".gif", ".tif", ".tiff"}
    | {".ppm", ".pgm", ".pbm", ".pnm", ".jp2", ".j2k", ".avif", ".heic", ".heif"}
)

# Pillow would also open formats such as PostScript, which run programs. The format is determined by content, not name.
_FORMATS = ("JPEG", "MPO", "PNG", "WEBP", "BMP", "DIB", "GIF", "TIFF", "PPM", "JPEG2000", "AVIF", "HEIF")
_ORIENTATION = 0x0112  # EXIF tag


def decode(data: bytes | Path, key: str) -> UInt8[Tensor, "3 h w"]:
    """RGB pixels of an image file, given its bytes or its path; the memory layout is [h, w, 3]."""
    if isinstance(data, Path):
        data = read_regular(data, key)
    if not data:
        raise BadImage(key, "the file is empty")
    pixels = _through_libjpeg(data, key) if data.startswith(b"\xff\xd8\xff") else None
    return _through_pillow(data, key) if pixels is None else pixels


def read_regular(path: Path, key: str) -> bytes:
    """The content of a regular file. A pipe or a device is rejected, since reading it could block or never end."""
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))  # else opening a pipe waits for its writer
        try:
            mode = os.fstat(handle).st_mode
            if not stat.S_ISREG(mode):
                kind = "a folder" if stat.S_ISDIR(mode) else "a pipe or a device"
                raise BadImage(key, f"it is {kind}, not a regular file")
            with open(handle, "rb", closefd=False) as file:
                return file.read()
        finally:
            os.close(handle)
    except OSError as error:
        raise BadImage(key, f"the file cannot be read: {error.strerror}") from None


@contextlib.contextmanager
def opened(data: bytes, key: str) -> Iterator[Image.Image]:
    """The image opened by Pillow, if its format is allowed; every failure is a `BadImage`."""
    try:
        # Sizes are checked here, and the metadata flaws that Pillow warns about do not affect the pixels.
        with warnings.catch_warnings(action="ignore"), Image.open(BytesIO(data), formats=_formats()) as image:
            _check_most(image.width, image.height, key)
            yield image
    except BadImage:
        raise
    except UnidentifiedImageError:
        raise BadImage(key, _unknown_format(data)) from None
    except Image.DecompressionBombError:
        raise BadImage(key, f"the image has more than {MAX_PIXELS:,} pixels") from None
    except Exception as error:  # on broken files, decoders raise almost any exception
        raise BadImage(key, f"the image cannot be decoded: {error or type(error).__name__}") from None


def from_pillow(image: Image.Image, key: str) -> UInt8[Tensor, "3 h w"]:
    """RGB pixels of a Pillow image, by the rules of this file."""
    check_size(image.width, image.height, key)
    image.load()
    orientation = _orientation(image)
    if image.mode.startswith("I;16"):
        levels = _from_16_bits(np.asarray(image).astype(np.uint32))
    elif image.mode == "I":
        levels = _from_integers(np.asarray(image))
    elif image.mode == "F":
        levels = _from_floats(np.asarray(image), key)
    else:
        levels = np.array(_to_rgb(image))
    if levels.ndim == 2:
        levels = np.repeat(levels[:, :, None], 3, axis=2)
    return _oriented(torch.from_numpy(levels).permute(2, 0, 1), orientation)


def _through_libjpeg(data: bytes, key: str) -> Tensor | None:
    """The pixels, or None if Pillow should try: for CMYK, or a kind of JPEG that libjpeg rejects."""
    frame = _jpeg_frame(data)
    if frame is None or _decode_jpeg is None:
        return None
    height, width, channels = frame
    check_size(width, height, key)
    if channels not in (1, 3):
        return None
    try:
        return _decode_jpeg(torch.frombuffer(bytearray(data), dtype=torch.uint8), 3, True)  # as RGB, oriented
    except RuntimeError as error:
        if "truncated" in str(error):  # Pillow would fill the rest with grey if zeros follow
            raise BadImage(key, "the file is truncated") from None
        return None


def _jpeg_operator() -> Callable[[Tensor, int, bool], Tensor] | None:
    """libjpeg-turbo as a torch operator. Its Python wrapper is deprecated in favour of another package. If the operator
    is missing too, Pillow does the same more slowly."""
    try:
        importlib.import_module("torchvision.io")
        return torch.ops.image.decode_jpeg
    except (ImportError, AttributeError, RuntimeError):
        return None


_decode_jpeg = _jpeg_operator()


def _jpeg_frame(data: bytes) -> tuple[int, int, int] | None:
    """Height, width and number of channels from the frame header; None if there is no frame header."""
    position = 2
    while position + 9 < len(data) and data[position] == 0xFF:
        marker = data[position + 1]
        if marker == 0xFF:  # fill byte
            position += 1
        elif marker == 0x01 or 0xD0 <= marker <= 0xD7:  # markers without content
            position += 2
        elif 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height = int.from_bytes(data[position + 5 : position + 7])
            return height, int.from_bytes(data[position + 7 : position + 9]), data[position + 9]
        else:
            position += 2 + int.from_bytes(data[position + 2 : position + 4])
    return None


def _through_pillow(data: bytes, key: str) -> Tensor:
    with opened(data, key) as image:
        if image.format in ("JPEG", "MPO") and not _ends(data):
            raise BadImage(key, "the file is truncated")
        return from_pillow(image, key)


def _ends(data: bytes) -> bool:
    """Whether a JPEG's end marker follows its last scan header."""
    return data.rfind(b"\xff\xd9") > data.rfind(b"\xff\xda")


@cache
def _formats() -> tuple[str, ...]:
    Image.init()
    with contextlib.suppress(ImportError):
        importlib.import_module("pillow_heif").register_heif_opener()
    return tuple(name for name in _FORMATS if name in Image.OPEN)


def _unknown_format(data: bytes) -> str:
    if data[4:8] == b"ftyp" and data[8:12] in (b"heic", b"heix", b"hevc", b"mif1", b"msf1"):
        return "HEIC images need the package pillow-heif: pip install pillow-heif"
    return "the file is not an image of a known format"


def check_size(width: int, height: int, key: str) -> None:
    if min(width, height) < MIN_SIDE:
        raise BadImage(key, f"the image is {width}×{height}, smaller than {MIN_SIDE} pixels a side")
    _check_most(width, height, key)


def _check_most(width: int, height: int, key: str) -> None:
    if width * height > MAX_PIXELS:
        raise BadImage(key, f"the image is {width}×{height}, more than {MAX_PIXELS:,} pixels")


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB")
    if image.mode == "CMYK" and image.format == "JPEG" and "adobe" not in image.info:
        image = image.point(lambda level: 255 - level)  # Pillow undid an inversion that did not exist
    return image.convert("RGB")


def _from_16_bits(values: NDArray[np.uint32]) -> NDArray[np.uint8]:
    return ((values + 128) // 257).astype(np.uint8)  # 65535 = 255 · 257


def _from_integers(values: NDArray[np.int32]) -> NDArray[np.uint8]:
    if values.min() >= 0 and values.max() <= 65535:
        return _from_16_bits(values.astype(np.uint32))
    return _stretched(values.astype(np.float64))


def _from_floats(values: NDArray[np.float32], key: str) -> NDArray[np.uint8]:
    finite = np.isfinite(values)
    if not finite.any():
        raise BadImage(key, "the image has no finite value")
    smallest, largest = values[finite].min(), values[finite].max()
    filled = np.where(finite, values, smallest).astype(np.float64)
    if smallest >= 0 and largest <= 255:
        return np.rint(filled * 255 if largest <= 1 else filled).astype(np.uint8)
    return _stretched(filled)


def _stretched(values: NDArray[np.float64]) -> NDArray[np.uint8]:
    smallest, largest = values.min(), values.max()
    span = largest - smallest
    return np.rint((values - smallest) * (255 / span if span > 0 else 0)).astype(np.uint8)


def _orientation(image: Image.Image) -> int:
    """EXIF orientation 1…8. Pillow has already rotated TIFF files, and broken EXIF is ignored."""
    try:
        return int(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # broken metadata is no reason to lose an image
        return 1


def _oriented(pixels: Tensor, orientation: int) -> Tensor:
    if orientation in (5, 6, 7, 8):
        pixels = pixels.transpose(1, 2)
    if orientation in (2, 3, 6, 7):
        pixels = pixels.flip(2)
    if orientation in (3, 4, 7, 8):
        pixels = pixels.flip(1)
    return pixels
