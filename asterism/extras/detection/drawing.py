"""Draws objects over their image: masks, boxes, classes and scores."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, UInt8
from PIL import ImageDraw, ImageFont
from torch import Tensor

from asterism.images.palette import palette
from asterism.images.write import to_pillow
from asterism.viz.pictures import magnified

_LEAST = 256  # pixels of the shorter side: smaller images are enlarged, so that names are readable
_TINT = 0.45  # share of the colour inside a mask


def drawn_objects(
    image: UInt8[Tensor, "3 h w"],
    boxes: Float[Tensor, "n 4"],
    labels: Int[Tensor, " n"],
    captions: Sequence[str],
    masks: Bool[Tensor, "n h w"] | None,
) -> UInt8[Tensor, "3 _ _"]:
    """The picture, enlarged if it is small; one colour per class."""
    picture = image.cpu()
    colours = palette(2 + int(labels.max()) if len(labels) else 1)
    if masks is not None:
        picture = picture.clone()
        for mask, label in zip(masks, labels.tolist(), strict=True):
            colour = torch.tensor(colours[1 + label], dtype=torch.float32)[:, None]
            inside = picture[:, mask].float()
            picture[:, mask] = ((1 - _TINT) * inside + _TINT * colour).round().to(torch.uint8)
    large = magnified(picture[None], _LEAST)[0]
    scale = large.shape[1] / picture.shape[1]
    canvas = to_pillow(large)
    pen = ImageDraw.Draw(canvas)
    line = max(2, round(min(large.shape[1:]) / 200))
    letters = max(12, min(large.shape[1:]) // 30)
    font = ImageFont.load_default(letters)
    for box, label, caption in zip(boxes.tolist(), labels.tolist(), captions, strict=True):
        left, top, right, bottom = (round(scale * edge) for edge in box)
        pen.rectangle((left, top, max(left, right - 1), max(top, bottom - 1)), outline=colours[1 + label], width=line)
        place = (left, max(0, top - letters - 4))
        pen.rectangle(pen.textbbox(place, caption, font=font), fill=colours[1 + label])
        pen.text(place, caption, fill="white", font=font)
    return torch.from_numpy(np.array(canvas)).permute(2, 0, 1)
