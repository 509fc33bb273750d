"""The choice of regions that the losses of R-CNNs are computed on, as a function of each image's random key.

torchvision draws from the global generator, so its choice depends on the other images of the batch and on everything
drawn before. Here an image's regions are the same in every batch, on every process, and after resuming.
"""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor

from asterism.ops.random import fold_each, uniform


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
            ranks = uniform(key, max(1, len(each)))[0, : len(each)]
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
