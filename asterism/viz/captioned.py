"""Draws a line of text below an image."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import UInt8
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from asterism.viz.pictures import magnified

_LEAST = 192  # pixels of the shorter side: smaller images are enlarged, so that the text is readable
_MOST = 2048  # pixels of the longer side: larger images are reduced, so that pages stay small


def captioned(image: UInt8[Tensor, "3 h w"], text: str) -> UInt8[Tensor, "3 _ _"]:
    """The image, enlarged if small and reduced if large, with the text on a strip below it; a long text is cut."""
    picture = magnified(_reduced(image).cpu(), _LEAST)[0]
    height, width = picture.shape[1:]
    size = max(16, min(height, width) // 12)
    strip = Image.new("RGB", (width, size * 2), "white")
    font = ImageFont.load_default(size)
    pen = ImageDraw.Draw(strip)
    while len(text) > 1 and pen.textlength(text, font=font) > width - size:
        text = text[:-2].rstrip() + "…"
    pen.text((size // 2, size // 3), text, fill="black", font=font)
    return torch.cat([picture, torch.from_numpy(np.array(strip)).permute(2, 0, 1)], dim=1)


def _reduced(image: UInt8[Tensor, "3 h w"]) -> UInt8[Tensor, "1 3 _ _"]:
    sides, longer = image.shape[1:], max(image.shape[1:])
    if longer <= _MOST:
        return image[None]
    size = [max(1, round(side * _MOST / longer)) for side in sides]
    return F.interpolate(image[None], size, mode="bilinear", antialias=True)
