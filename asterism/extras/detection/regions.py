"""Where an R-CNN looks: anchors on the maps of a pyramid, and the choice of regions that its losses are computed on.

torchvision divides the size of the image by that of a map and drops the remainder. With patches of 14 pixels, whose
finest map has cells of 3.5, its anchors would end long before the image does. Here the sides of cells are exact. No
tensor is made on a named device, so the anchors can be recorded (`asterism.nn.graph`).

torchvision draws regions from the global generator, so its choice depends on the other images of the batch and on
everything drawn before. Here an image's regions are a function of its random key: the same in every batch, on every
process, and after resuming.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.image_list import ImageList

from asterism.ops.host import sent
from asterism.ops.random import fold_each, uniform


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


class KeyedSampler:
    """Replaces torchvision's `BalancedPositiveNegativeSampler`: a number of regions per image, some of them objects.

    `keys` must be set before each call. `sampled` regions were chosen by the last call, `objects` of them with objects.
    """

    def __init__(self, regions: int, positive_share: float, use: int) -> None:
        self._regions, self._most = regions, int(regions * positive_share)
        self._use = use  # separates these draws from other uses of an image's key
        self.keys: Int[Tensor, " b"] | None = None
        self.sampled = self.objects = 0

    def __call__(self, labels: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """For every image, which regions are chosen as objects and which as background.

        labels: of the regions of every image, positive for objects, 0 for background, -1 to be ignored.
        """
        assert self.keys is not None, "the keys of the images must be set"
        assert len(labels) == len(self.keys)
        keys = fold_each(self.keys, self._use)
        positive, negative = [], []
        for key, each in zip(torch.split(keys, 1), labels, strict=True):
            ranks = sent(uniform(key, max(1, len(each)))[0, : len(each)], each.device)
            chosen = _lowest(ranks, each >= 1, self._most)
            others = _lowest(ranks, each == 0, self._regions - int(chosen.sum()))
            positive.append(chosen.to(torch.uint8))
            negative.append(others.to(torch.uint8))
        self.objects = sum(int(each.sum()) for each in positive)
        self.sampled = self.objects + sum(int(each.sum()) for each in negative)
        return positive, negative


def _lowest(ranks: Tensor, allowed: Tensor, count: int) -> Tensor:
    """The `count` allowed places of lowest rank, or all of them if there are fewer."""
    places = allowed.nonzero()[:, 0]
    chosen = torch.zeros_like(allowed)
    chosen[places[ranks[places].argsort(stable=True)[:count]]] = True
    return chosen
