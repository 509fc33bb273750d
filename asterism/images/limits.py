"""The limits on images: which sizes are read, and how to raise them.

They protect from decompression bombs (20 kB that become gigabytes), and from shapes that no crop can represent. Sizes
are read from the header, so a file beyond a limit is refused before it is decoded.
"""

from __future__ import annotations

import os
from functools import cache

from asterism.errors import UserError
from asterism.images.bad_image import BadImage

MIN_SIDE = 8  # pixels; anything smaller is an icon or an accident, and its crops carry no information
MAX_SIDE = 65_500  # pixels; the largest side of a JPEG, which overlays are written as
MAX_ASPECT = 100  # longer side over shorter side; resizing the shorter side makes the longer one this many times larger
MAX_PIXELS = 178_956_970  # half a gigabyte of RGB; Pillow's own limit against decompression bombs
MAX_BYTES = 1 << 30  # of an image file: more than 16 bits per channel of the largest image

PIXELS_VARIABLE = "ASTERISM_MAX_IMAGE_PIXELS"
BYTES_VARIABLE = "ASTERISM_MAX_IMAGE_BYTES"


def max_pixels() -> int:
    return _limit(PIXELS_VARIABLE, os.environ.get(PIXELS_VARIABLE), MAX_PIXELS)


def max_bytes() -> int:
    return _limit(BYTES_VARIABLE, os.environ.get(BYTES_VARIABLE), MAX_BYTES)


def check_size(width: int, height: int, key: str) -> None:
    """Refuse an image that is too small, too large or too narrow."""
    if min(width, height) < MIN_SIDE:
        raise BadImage(key, f"the image is {width}×{height}, smaller than {MIN_SIDE} pixels a side")
    check_most(width, height, key)
    if max(width, height) > MAX_ASPECT * min(width, height):
        raise BadImage(key, f"the image is {width}×{height}, more than {MAX_ASPECT} times as long as wide; cut it up")


def check_most(width: int, height: int, key: str) -> None:
    """Refuse an image that is too large."""
    if width * height > max_pixels():
        raise BadImage(
            key,
            f"the image is {width}×{height}, more than {max_pixels():,} pixels; {PIXELS_VARIABLE} raises this limit",
        )
    if max(width, height) > MAX_SIDE:
        raise BadImage(key, f"the image is {width}×{height}, more than {MAX_SIDE:,} pixels a side; cut it up")


def check_bytes(size: int, key: str) -> None:
    """Refuse an image file that is too large."""
    if size > max_bytes():
        raise BadImage(
            key, f"the file has {size:,} bytes, more than {max_bytes():,}; {BYTES_VARIABLE} raises this limit"
        )


@cache
def _limit(variable: str, text: str | None, default: int) -> int:
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 1 << 40):
        raise UserError(f"{variable}={text} is not a limit; set it to a whole number, by default {default}")
    return int(text)
