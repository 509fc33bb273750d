"""Where the boxes of an image lie in the middle square that an evaluation sees, and which patches show their inside.

A box is left, top, right, bottom in pixels, edges included: the box of the whole image is (0, 0, width, height).
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

_INSIDE = 1e-3  # pixels by which a point on the last edge is moved into the last patch
_SMALLEST = 1e-3  # square pixels; a box of less is not seen


def boxes_in_square(
    boxes: Float[Tensor, "m 4"], image: tuple[int, int], resize: int, crop: int
) -> Float[Tensor, "m 4"]:
    """Boxes in pixels of the middle square of `crop`, after the shorter side of the image became `resize`.

    `image` is its height and width. The longer side is truncated to whole pixels, as when the image is resized. What
    lies outside of the square has coordinates beyond it.
    """
    shorter = min(image)
    height, width = (resize if side == shorter else int(resize * side / shorter) for side in image)
    return _moved(boxes, image, (height, width), crop)


def boxes_in_squashed_square(
    boxes: Float[Tensor, "m 4"], image: tuple[int, int], resize: int, crop: int
) -> Float[Tensor, "m 4"]:
    """The same as if both sides had become `resize`, which is what FLSL's published evaluation takes for granted."""
    return _moved(boxes, image, (resize, resize), crop)


def largest_box_cells(
    boxes: Float[Tensor, "m 4"], crop: int, grid: int, points: int
) -> tuple[Int[Tensor, " cells"], int, bool]:
    """The patches under points × points places spread evenly over the box with the largest part inside the square.

    Returns their raster indices row by row, which box it is, and whether any of it can be seen at all.
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
