"""A gallery as a single picture, for places that show one picture at a time."""

from __future__ import annotations

import torch
from jaxtyping import UInt8
from torch import Tensor
from torch.nn.functional import interpolate

from asterism.viz.page import Gallery

_SIDE, _GAP = 96, 4  # pixels of a picture, and between two
_PAPER = 255


def tiled(gallery: Gallery) -> UInt8[Tensor, "3 h w"]:
    """Columns from left to right, images from top to bottom, all at one size."""
    columns = [_at_one_size(pictures.cpu()) for pictures in gallery.values()]
    rows = max(len(column) for column in columns)
    height, width = rows * (_SIDE + _GAP) - _GAP, len(columns) * (_SIDE + _GAP) - _GAP
    sheet = torch.full((3, height, width), _PAPER, dtype=torch.uint8)
    for x, column in enumerate(columns):
        for y, picture in enumerate(column):
            top, left = y * (_SIDE + _GAP), x * (_SIDE + _GAP)
            sheet[:, top : top + _SIDE, left : left + _SIDE] = picture
    return sheet


def _at_one_size(pictures: UInt8[Tensor, "b 3 h w"]) -> UInt8[Tensor, "b 3 s s"]:
    if pictures.shape[2:] == (_SIDE, _SIDE):
        return pictures
    if max(pictures.shape[2:]) < _SIDE:  # cells of small images stay visible
        return interpolate(pictures, (_SIDE, _SIDE), mode="nearest-exact")
    return interpolate(pictures.float(), (_SIDE, _SIDE), mode="bilinear", antialias=True).round().to(torch.uint8)
