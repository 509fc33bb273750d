"""Draws a line of text below an image."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from asterism.viz.pictures import magnified

_LEAST = 192  # pixels of the shorter side: smaller images are enlarged, so that the text is readable


def captioned(image: UInt8[Tensor, "3 h w"], text: str) -> UInt8[Tensor, "3 _ _"]:
    """The image, enlarged if it is small, with the text on a strip below it; a long text is cut."""
    picture = magnified(image[None].cpu(), _LEAST)[0]
    height, width = picture.shape[1:]
    size = max(16, min(height, width) // 12)
    strip = Image.new("RGB", (width, size * 2), "white")
    font = ImageFont.load_default(size)
    pen = ImageDraw.Draw(strip)
    while len(text) > 1 and pen.textlength(text, font=font) > width - size:
        text = text[:-2].rstrip() + "…"
    pen.text((size // 2, size // 3), text, fill="black", font=font)
    return torch.cat([picture, torch.from_numpy(np.array(strip)).permute(2, 0, 1)], dim=1)
