"""The position of an image's boxes in the centre crop of an evaluation, and the patches inside a box.

A box is left, top, right, bottom in pixels, edges included: the box of the whole image is (0, 0, width, height).
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

_INSIDE = 1e-3  # pixels by which a point on the last edge is moved into the last patch
_SMALLEST = 1e-3  # square pixels; a smaller box counts as not visible


def boxes_in_square(
    boxes: Float[Tensor, "m 4"], image: tuple[int, int], resize: int, crop: int
) -> Float[Tensor, "m 4"]:
    """Boxes in pixels of a centre crop of side `crop`, after the image's shorter side was resized to `resize`.

    `image` is its height and width. The longer side is truncated to whole pixels, as when the image is resized. Parts
    of a box outside the square have coordinates beyond it.
    """
    shorter = min(image)
    height, width = (resize if side == shorter else int(resize * side / shorter) for side in image)
    return _moved(boxes, image, (height, width), crop)


def boxes_in_squashed_square(
    boxes: Float[Tensor, "m 4"], image: tuple[int, int], resize: int, crop: int
) -> Float[Tensor, "m 4"]:
    """The same with both sides resized to `resize`, which is what FLSL's published evaluation assumes."""
    return _moved(boxes, image, (resize, resize), crop)


def largest_box_cells(
    boxes: Float[Tensor, "m 4"], crop: int, grid: int, points: int
) -> tuple[Int[Tensor, " cells"], int, bool]:
    """The patches under points × points places spread evenly over the box with the largest part inside the square.

    Returns their raster indices row by row, the index of the box, and whether any of it is visible.
    """
    clipped = boxes.clamp(0, crop - _INSIDE)
    sides = clipped[:, 2:] - clipped[:, :2]
    areas = sides.prod(dim=1)
    largest = int(areas.argmax())
    shares = (torch.arange(points, dtype=boxes.dtype) + 0.5) / points
    places = clipped[largest, :2, None] + sides[largest, :, None] * shares
    column, row = (places * grid / crop).floor().long().unbind()
    return (row[:, None] * grid + column).flatten(), largest, bool(areas[largest] > _SMALLEST)


def _moved(boxes: Tensor, image: tuple[int, int], resized: tuple[int, int], crop: int) -> Tensor:
    scale = torch.tensor([new / old for new, old in zip(resized, image, strict=True)], dtype=boxes.dtype).flip(0)
    offset = torch.tensor([round((side - crop) / 2) for side in resized], dtype=boxes.dtype).flip(0)
    return boxes * scale.repeat(2) - offset.repeat(2)
