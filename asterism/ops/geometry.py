"""The position of views in their images: the only code that interprets `CropGeometry`.

Points are (x, y) in pixels of the original image, whose top-left pixel has its centre at (0, 0) and its corner at
(−½, −½). Coordinates inside a view are (u, v) in [0, 1] from its own top-left corner, as the view is seen: after the
flip. Patches are in raster order of the view.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from asterism.types import CropGeometry


def geometry_from_rows(rows: Float[Tensor, "b 7"]) -> CropGeometry:
    """One row per image: top, left, height, width, image height, image width, and 1 where flipped, else 0."""
    top, left, height, width, image_height, image_width, flip = rows.unbind(1)
    return CropGeometry(top, left, height, width, image_height, image_width, flip=flip > 0.5)


def patch_centers(geometry: CropGeometry, grid: tuple[int, int]) -> Float[Tensor, "b n 2"]:
    """The points of the original image at the centres of a view's patches; `grid` is its (rows, columns)."""
    rows, columns = grid
    device = geometry.top.device
    v = (torch.arange(rows, device=device) + 0.5) / rows
    u = (torch.arange(columns, device=device) + 0.5) / columns
    centers = torch.stack((u.expand(rows, columns), v[:, None].expand(rows, columns)), dim=-1)
    return to_image(geometry, centers.reshape(1, -1, 2).expand(len(geometry.top), -1, -1))


def to_image(geometry: CropGeometry, coordinates: Float[Tensor, "b n 2"]) -> Float[Tensor, "b n 2"]:
    """From coordinates inside each image's view to points of the image."""
    u, v = coordinates.unbind(-1)
    u = torch.where(geometry.flip[:, None], 1 - u, u)
    x = geometry.left[:, None] + u * geometry.width[:, None] - 0.5
    y = geometry.top[:, None] + v * geometry.height[:, None] - 0.5
    return torch.stack((x, y), dim=-1)


def to_view(geometry: CropGeometry, points: Float[Tensor, "b n 2"]) -> Float[Tensor, "b n 2"]:
    """From points of each image to coordinates inside its view, beyond [0, 1] where the view does not show them."""
    x, y = points.unbind(-1)
    u = (x + 0.5 - geometry.left[:, None]) / geometry.width[:, None]
    v = (y + 0.5 - geometry.top[:, None]) / geometry.height[:, None]
    return torch.stack((torch.where(geometry.flip[:, None], 1 - u, u), v), dim=-1)


def locate(
    geometry: CropGeometry, points: Float[Tensor, "b n 2"], grid: tuple[int, int]
) -> tuple[Int[Tensor, "b n"], Bool[Tensor, "b n"]]:
    """The patch of the view that contains each point (the nearest one if none does), and whether it is in view."""
    rows, columns = grid
    coordinates = to_view(geometry, points)
    u, v = coordinates.unbind(-1)
    column = (u * columns).floor().long().clamp(0, columns - 1)
    row = (v * rows).floor().long().clamp(0, rows - 1)
    inside = ((coordinates >= 0) & (coordinates < 1)).all(-1)
    return row * columns + column, inside


def project(
    source: CropGeometry, target: CropGeometry, source_grid: tuple[int, int], target_grid: tuple[int, int]
) -> tuple[Int[Tensor, "b n"], Bool[Tensor, "b n"]]:
    """For each patch of the source view, the patch of the target view at the same point, and whether it is in view."""
    return locate(target, patch_centers(source, source_grid), target_grid)
