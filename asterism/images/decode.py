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
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from asterism.images.bad_image import BadImage
from asterism.images.limits import PIXELS_VARIABLE, check_most, check_size, max_bytes, max_pixels
from asterism.inputs import Unreadable, read_regular

SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".dib", ".gif", ".tif", ".tiff"}
    | {".ppm", ".pgm", ".pbm", ".pnm", ".jp2", ".j2k", ".avif", ".heic", ".heif"}
)

# Pillow would also open formats such as PostScript, which run programs. The format is determined by content, not name.
_FORMATS = ("JPEG", "MPO", "PNG", "WEBP", "BMP", "DIB", "GIF", "TIFF", "PPM", "JPEG2000", "AVIF", "HEIF")
_ORIENTATION = 0x0112  # EXIF tag
_TRANSPOSED = (5, 6, 7, 8)  # orientations that exchange height and width
ToLevels = Callable[[NDArray[Any]], NDArray[np.uint8]]  # from rows of grey values to 0…255
_PIXELS_AT_ONCE = 1 << 22  # converted to RGB at a time, so that a large image has few copies in memory


def decode(data: bytes | Path, key: str) -> UInt8[Tensor, "3 h w"]:
    """RGB pixels of an image file, given its bytes or its path; the memory layout is [h, w, 3]."""
    if isinstance(data, Path):
        data = read_image_file(data, key)
    if not data:
        raise BadImage(key, "the file is empty")
    pixels = _through_libjpeg(data, key) if data.startswith(b"\xff\xd8\xff") else None
    return _through_pillow(data, key) if pixels is None else pixels


def image_size(path: Path, key: str) -> tuple[int, int]:
    """Height and width of the pixels that `decode` returns, from the file's header alone."""
    with opened(read_image_file(path, key), key) as image:
        size = (image.height, image.width)
        return size[::-1] if _orientation(image) in _TRANSPOSED else size


def read_image_file(path: Path, key: str) -> bytes:
    """The content of a regular file that is not too large. Reading a pipe or a device could block or never end."""
    try:
        return read_regular(path, max_bytes())
    except Unreadable as error:
        raise BadImage(key, str(error)) from None


@contextlib.contextmanager
def opened(data: bytes, key: str) -> Iterator[Image.Image]:
    """The image opened by Pillow, if its format is allowed; every failure is a `BadImage`."""
    most = max_pixels()
    if Image.MAX_IMAGE_PIXELS is not None and most > 2 * Image.MAX_IMAGE_PIXELS:
        Image.MAX_IMAGE_PIXELS = most  # the user has raised our limit above Pillow's
    try:
        # Sizes are checked here, and the metadata flaws that Pillow warns about do not affect the pixels.
        with warnings.catch_warnings(action="ignore"), Image.open(BytesIO(data), formats=_formats()) as image:
            check_most(image.width, image.height, key)
            yield image
    except BadImage:
        raise
    except UnidentifiedImageError:
        raise BadImage(key, _unknown_format(data)) from None
    except Image.DecompressionBombError:
        raise BadImage(key, f"the image has more than {most:,} pixels; {PIXELS_VARIABLE} sets the limit") from None
    except Exception as error:  # on broken files, decoders raise almost any exception
        raise BadImage(key, f"the image cannot be decoded: {error or type(error).__name__}") from None


def from_pillow(image: Image.Image, key: str) -> UInt8[Tensor, "3 h w"]:
    """RGB pixels of a Pillow image, by the rules of this file."""
    check_size(image.width, image.height, key)
    image.load()
    orientation = _orientation(image)
    to_levels: ToLevels | None = None
    if image.mode.startswith("I;16"):
        to_levels = _from_16_bits
    elif image.mode == "I":
        to_levels = _from_integers(np.asarray(image))
    elif image.mode == "F":
        to_levels = _from_floats(np.asarray(image), key)
    has_plain_inks = image.mode == "CMYK" and image.format == "JPEG" and "adobe" not in image.info
    levels = np.empty((image.height, image.width, 3), dtype=np.uint8)
    for rows in _bands(image.height, image.width):
        band = image.crop((0, rows.start, image.width, rows.stop)) if rows.stop - rows.start < image.height else image
        if to_levels is None:
            levels[rows] = np.asarray(_to_rgb(band, has_plain_inks))
        else:
            levels[rows] = to_levels(np.asarray(band))[:, :, None]
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


def _bands(height: int, width: int) -> Iterator[slice]:
    rows = max(1, _PIXELS_AT_ONCE // width)
    return (slice(top, min(height, top + rows)) for top in range(0, height, rows))


def _to_rgb(image: Image.Image, has_plain_inks: bool) -> Image.Image:
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB")
    if has_plain_inks:
        image = image.point(lambda level: 255 - level)  # Pillow undid an inversion that did not exist
    return image if image.mode == "RGB" else image.convert("RGB")


def _from_16_bits(values: NDArray[Any]) -> NDArray[np.uint8]:
    return ((values.astype(np.uint32) + 128) // 257).astype(np.uint8)  # 65535 = 255 · 257


def _from_integers(values: NDArray[np.int32]) -> ToLevels:
    """The rule that the values of the whole image call for."""
    smallest, largest = values.min(), values.max()
    return _from_16_bits if smallest >= 0 and largest <= 65535 else _stretched(float(smallest), float(largest))


def _from_floats(values: NDArray[np.float32], key: str) -> ToLevels:
    """The rule that the values of the whole image call for."""
    parts = (band[np.isfinite(band)] for band in (values[rows] for rows in _bands(*values.shape)))
    ends = [(part.min(), part.max()) for part in parts if part.size]
    if not ends:
        raise BadImage(key, "the image has no finite value")
    smallest, largest = float(min(low for low, _ in ends)), float(max(high for _, high in ends))
    if not (smallest >= 0 and largest <= 255):
        return _stretched(smallest, largest)
    factor = 255 if largest <= 1 else 1

    def as_they_are(band: NDArray[Any]) -> NDArray[np.uint8]:
        return np.rint(_finite(band, smallest) * factor).astype(np.uint8)

    return as_they_are


def _stretched(smallest: float, largest: float) -> ToLevels:
    span = largest - smallest
    factor = 255 / span if span > 0 else 0

    def stretch(band: NDArray[Any]) -> NDArray[np.uint8]:
        return np.rint((_finite(band, smallest) - smallest) * factor).astype(np.uint8)

    return stretch


def _finite(values: NDArray[Any], otherwise: float) -> NDArray[np.float64]:
    return np.where(np.isfinite(values), values, otherwise).astype(np.float64)


def _orientation(image: Image.Image) -> int:
    """EXIF orientation 1…8. Pillow has already rotated TIFF files, and broken EXIF is ignored."""
    try:
        return int(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # broken metadata is no reason to lose an image
        return 1


def _oriented(pixels: Tensor, orientation: int) -> Tensor:
    if orientation in _TRANSPOSED:
        pixels = pixels.transpose(1, 2)
    if orientation in (2, 3, 6, 7):
        pixels = pixels.flip(2)
    if orientation in (3, 4, 7, 8):
        pixels = pixels.flip(1)
    return pixels
