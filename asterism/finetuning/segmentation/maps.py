"""Predictions and labels: a class for every pixel."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import UInt8
from torch import Tensor

from asterism.finetuning.task import Prediction, Truth
from asterism.images.palette import palette

_BACKGROUND = "background"


@dataclass(frozen=True)
class Segmentation(Prediction):
    """The class of every pixel."""

    mask: UInt8[Tensor, "h w"]  # positions in `names`
    names: tuple[str, ...]

    @property
    def areas(self) -> dict[str, float]:
        """The share of the image that each class covers, of those that are there, largest first."""
        counts = torch.bincount(self.mask.flatten().long(), minlength=len(self.names)).tolist()
        there = sorted((-count, name) for count, name in zip(counts, self.names, strict=True) if count)
        return {name: -count / self.mask.numel() for count, name in there}


@dataclass(frozen=True)
class Labels(Truth):
    """The true class of every pixel."""

    mask: UInt8[Tensor, "h w"]  # positions in `names`, or VOID
    names: tuple[str, ...]


def first_colour(names: tuple[str, ...]) -> int:
    """The place in the palette of the first class: black, which leaves an image as it is, is for a background."""
    return 0 if names[0].lower() == _BACKGROUND else 1


def class_colours(names: tuple[str, ...]) -> list[tuple[int, int, int]]:
    """The colour of each class in masks and drawings."""
    first = first_colour(names)
    return palette(len(names) + first)[first:]
