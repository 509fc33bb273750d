"""Draws masks over images: every object in its colour, with an outline."""

from __future__ import annotations

import math

import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from asterism.images.palette import palette
from asterism.ops.video_metrics import boundaries, dilated

_TINT = 0.45  # share of the colour inside an object
_OUTLINE = 1 / 600  # half the width of an outline, as a share of the image diagonal


def overlay(image: UInt8[Tensor, "3 h w"], mask: Int64[Tensor, "h w"]) -> UInt8[Tensor, "3 h w"]:
    """The image with its objects tinted; it is unchanged where the mask is 0."""
    colours = torch.tensor(palette(int(mask.max()) + 1), dtype=torch.float32)
    pixels, colour = image.float(), colours[mask].permute(2, 0, 1)
    radius = max(1, round(_OUTLINE * math.hypot(*mask.shape)))
    numbers = torch.unique(mask)
    regions = mask == numbers[:, None, None]
    outline = dilated(boundaries(regions).any(dim=0)[None], radius)[0]
    inside = mask > 0
    tinted = torch.where(inside, (1 - _TINT) * pixels + _TINT * colour, pixels)
    edge = torch.where(inside, 0.75 * colour + 0.25 * 255, 0.5 * pixels)
    return torch.where(outline, edge, tinted).round().clamp(0, 255).to(torch.uint8)
