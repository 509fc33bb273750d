"""Coloured regions of images: each label's patches tinted, or one region highlighted and the rest dimmed.

Images are in [0, 1]. Maps have one entry per patch on any grid; their cells stay visible.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

_TURN = 0.618034  # of the colour circle between labels: the golden ratio keeps consecutive hues far apart
_TINT = 0.6  # weight of the colour in a tinted patch
_DIM = 0.3  # brightness of the dimmed part


def label_colors(count: int) -> Float[Tensor, "{count} 3"]:
    """Bright colours; consecutive ones are far apart in hue."""
    hue = torch.arange(count) * _TURN % 1
    phases = (hue[:, None] + torch.tensor([0.0, 2 / 3, 1 / 3])) % 1  # of red, green and blue
    return (1 - (6 * (phases - 0.5).abs() - 1).clamp(0, 1)) * 0.9 + 0.1


def tint(images: Float[Tensor, "b 3 h w"], labels: Int[Tensor, "b rows columns"]) -> Float[Tensor, "b 3 h w"]:
    """Every label in its own colour over the grey image; patches with label −1 are dimmed."""
    gray = images.mean(dim=1, keepdim=True)
    cells = _at_size(labels, images)
    colors = label_colors(int(labels.max().clamp_min(0)) + 1).to(images)
    painted = colors[cells.clamp_min(0)].permute(0, 3, 1, 2) * (0.4 + 0.6 * gray)
    return torch.where(cells[:, None] < 0, _DIM * gray, (1 - _TINT) * gray + _TINT * painted)


def spotlight(images: Float[Tensor, "b 3 h w"], mask: Bool[Tensor, "b rows columns"]) -> Float[Tensor, "b 3 h w"]:
    """The images where the mask is true; elsewhere grey and dark."""
    gray = images.mean(dim=1, keepdim=True)
    return torch.where(_at_size(mask.long(), images)[:, None] > 0, images, _DIM * gray)


def _at_size(maps: Int[Tensor, "b rows columns"], images: Float[Tensor, "b 3 h w"]) -> Int[Tensor, "b h w"]:
    size = (images.shape[-2], images.shape[-1])
    return F.interpolate(maps[:, None].float(), size, mode="nearest-exact")[:, 0].long()
