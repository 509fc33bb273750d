"""Draws masks over images: every object in its colour, with an outline."""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Integer, UInt8
from torch import Tensor

from asterism.images.palette import palette
from asterism.ops.video_metrics import dilated

_TINT = 0.45  # share of the colour inside an object
_OUTLINE = 1 / 600  # half the width of an outline, as a share of the image diagonal
_PIXELS_AT_ONCE = 1 << 22


def overlay(image: UInt8[Tensor, "3 h w"], mask: Integer[Tensor, "h w"]) -> UInt8[Tensor, "3 h w"]:
    """The image with its objects tinted; it is unchanged where the mask is 0.

    It is drawn in bands of rows, so that a large photograph has one copy in memory and not one per colour.
    """
    height, width = mask.shape
    colours = torch.tensor(palette(int(mask.max()) + 1), dtype=torch.float32)
    radius = max(1, round(_OUTLINE * math.hypot(height, width)))
    drawn = torch.empty_like(image)
    rows = max(1, _PIXELS_AT_ONCE // width)
    for top in range(0, height, rows):
        bottom = min(height, top + rows)
        first, last = max(0, top - radius), min(height, bottom + radius + 1)  # outlines of the neighbouring rows count
        outline = _widened(_borders(mask[first:last]), radius)[top - first : bottom - first]
        drawn[:, top:bottom] = _tinted(image[:, top:bottom], mask[top:bottom], outline, colours)
    return drawn


def _tinted(image: Tensor, mask: Tensor, outline: Tensor, colours: Tensor) -> Tensor:
    pixels, colour, inside = image.float(), colours[mask.long()].permute(2, 0, 1), mask > 0
    tinted = torch.where(inside, (1 - _TINT) * pixels + _TINT * colour, pixels)
    edge = torch.where(inside, 0.75 * colour + 0.25 * 255, 0.5 * pixels)
    return torch.where(outline, edge, tinted).round().clamp(0, 255).to(torch.uint8)


def _widened(borders: Bool[Tensor, "h w"], radius: int) -> Bool[Tensor, "h w"]:
    """All pixels within `radius` of a border, computed only around the columns that have one."""
    columns = borders.any(dim=0).nonzero()
    if not len(columns):
        return borders
    left, right = max(0, int(columns[0]) - radius), int(columns[-1]) + radius + 1
    result = torch.zeros_like(borders)
    result[:, left:right] = dilated(borders[None, :, left:right], radius)[0]
    return result


def _borders(mask: Integer[Tensor, "h w"]) -> Bool[Tensor, "h w"]:
    """Pixels whose object differs from that of the next pixel to the right, below or diagonally."""
    found = torch.zeros(mask.shape, dtype=torch.bool)
    found[:, :-1] |= mask[:, :-1] != mask[:, 1:]
    found[:-1] |= mask[:-1] != mask[1:]
    found[:-1, :-1] |= mask[:-1, :-1] != mask[1:, 1:]
    # At the last row and column the diagonal neighbour is the one to the right or below.
    return found
