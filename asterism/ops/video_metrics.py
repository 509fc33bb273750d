"""Agreement of a video's masks with the true ones: J for regions, F for boundaries, as in DAVIS."""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

TOLERANCE = 0.008  # share of the image's diagonal within which boundaries agree


def region_similarity(predicted: Bool[Tensor, "m h w"], true: Bool[Tensor, "m h w"]) -> Float[Tensor, " m"]:
    """J: intersection over union of each pair of masks; two empty masks agree."""
    common = (predicted & true).flatten(1).sum(1).double()
    either = (predicted | true).flatten(1).sum(1).double()
    return torch.where(either > 0, common / either.clamp_min(1), 1.0)


def boundary_similarity(
    predicted: Bool[Tensor, "m h w"], true: Bool[Tensor, "m h w"], tolerance: float = TOLERANCE
) -> Float[Tensor, " m"]:
    """F: harmonic mean of the shares of each boundary that are near the other one.

    Near means within ⌈tolerance · diagonal⌉ pixels. Masks without a boundary (empty or full) agree with each other
    and with no other mask.
    """
    radius = math.ceil(tolerance * math.hypot(*predicted.shape[1:]))
    ours, theirs = boundaries(predicted), boundaries(true)
    precision, recall = _share_near(ours, theirs, radius), _share_near(theirs, ours, radius)
    return 2 * precision * recall / (precision + recall).clamp_min(1e-12)


def boundaries(masks: Bool[Tensor, "m h w"]) -> Bool[Tensor, "m h w"]:
    """Pixels that differ from the next one to the right, below or diagonally; pixels beyond the edge do not differ."""
    extended = F.pad(masks.float()[:, None], (0, 1, 0, 1), mode="replicate")[:, 0].bool()
    right, below, both = extended[:, :-1, 1:], extended[:, 1:, :-1], extended[:, 1:, 1:]
    return (masks ^ right) | (masks ^ below) | (masks ^ both)


def dilated(masks: Bool[Tensor, "m h w"], radius: int) -> Bool[Tensor, "m h w"]:
    """All pixels within `radius` of a pixel of the mask: the union of its rows widened and shifted up and down."""
    padded = F.pad(masks.float(), (0, 0, radius, radius))
    height = masks.shape[1]
    result = torch.zeros_like(masks)
    for shift in range(-radius, radius + 1):
        half = math.isqrt(radius * radius - shift * shift)
        rows = padded[:, radius + shift : radius + shift + height]
        result |= F.max_pool1d(rows, 2 * half + 1, stride=1, padding=half).bool()
    return result


def _share_near(outline: Tensor, other: Tensor, radius: int) -> Tensor:
    """The share of each boundary near the other; 1 for a boundary without pixels."""
    pixels = outline.flatten(1).sum(1).double()
    near = (outline & dilated(other, radius)).flatten(1).sum(1).double()
    return torch.where(pixels > 0, near / pixels.clamp_min(1), 1.0)
