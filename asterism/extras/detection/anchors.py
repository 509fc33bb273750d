"""Anchors on the maps of a pyramid: boxes of fixed shapes around the corner of every cell, as torchvision places them.

torchvision divides the size of the image by that of a map and drops the remainder. With patches of 14 pixels, whose
finest map has cells of 3.5, its anchors would end long before the image does. Here the sides of cells are exact. No
tensor is made on a named device, so the anchors can be recorded (`asterism.nn.graph`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.image_list import ImageList


class Anchors(AnchorGenerator):  # type: ignore[misc]
    """torchvision's anchors, for maps whose cells have these sides in pixels."""

    def __init__(self, sides: Sequence[float], cells: Sequence[float], ratios: tuple[float, ...]) -> None:
        """sides: of a square anchor, one per map. ratios: height over width."""
        super().__init__(tuple((side,) for side in sides), (ratios,) * len(sides))
        self.cells = tuple(cells)

    def forward(self, image_list: ImageList, feature_maps: list[Tensor]) -> list[Tensor]:
        anchors = torch.cat(self.by_map(feature_maps))
        return [anchors] * len(image_list.image_sizes)

    def by_map(self, maps: Sequence[Float[Tensor, "b c _ _"]]) -> list[Float[Tensor, "_ 4"]]:
        """For each map, the anchors of its cells in raster order."""
        return [
            _moved(shapes.to(each), each, cell)
            for shapes, each, cell in zip(self.cell_anchors, maps, self.cells, strict=True)
        ]


def _moved(shapes: Float[Tensor, "a 4"], of: Float[Tensor, "b c h w"], cell: float) -> Float[Tensor, "n 4"]:
    down, across = (cell * (torch.ones_like(line).cumsum(0) - 1) for line in (of[0, 0, :, 0], of[0, 0, 0]))
    down, across = down[:, None] + 0 * across, 0 * down[:, None] + across
    corners = torch.stack([across, down, across, down], dim=2)
    return (corners[:, :, None] + shapes).flatten(0, 2)
