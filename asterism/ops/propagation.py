"""Propagating a mask through a video by the similarity of patch features.

A patch of a new frame is compared with the patches within `radius` of its position in the first frame and in the last
few frames. The `topk` most similar over all these frames give it their masks, weighted by exp(cosine / temperature).
Masks stay soft from frame to frame; they are made hard only for output.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

import torch
from jaxtyping import Float, Int, Integer, UInt8
from torch import Tensor
from torch.nn import functional as F

_SIMILARITIES = 1 << 24  # numbers held at a time; 64 MB


def propagate(
    frames: Iterable[Float[Tensor, "n d"]],
    first_mask: Float[Tensor, "c h w"],
    *,
    context: int,
    topk: int,
    radius: int,
    temperature: float,
) -> Iterator[Float[Tensor, "c h w"]]:
    """Yield the soft mask of every frame after the first; `context` frames are kept in addition to the first."""
    remaining = iter(frames)
    first = _unit(next(remaining))
    recent: deque[tuple[Tensor, Tensor]] = deque(maxlen=context)
    for frame in remaining:
        features = _unit(frame)
        known = [(first, first_mask), *recent]
        keys, masks = (torch.stack(parts) for parts in zip(*known, strict=True))
        mask = carry_mask(features, keys, masks, topk=topk, radius=radius, temperature=temperature)
        recent.append((features, mask))
        yield mask


def carry_mask(
    queries: Float[Tensor, "n d"],
    keys: Float[Tensor, "t n d"],
    masks: Float[Tensor, "t c h w"],
    *,
    topk: int,
    radius: int,
    temperature: float,
) -> Float[Tensor, "c h w"]:
    """The mask of one frame from those of its context; features have unit length.

    Patches tied with the last of the `topk` count too. A band of queries is compared only with the rows of the grid
    within its radius, so that memory does not grow with the square of the grid.
    """
    frames, classes, height, width = masks.shape
    features = keys.reshape(frames, height, width, -1)
    seen_rows = min(height, 2 * radius + 1)
    band = max(1, _SIMILARITIES // (frames * width * width * seen_rows))
    columns = torch.arange(width, device=queries.device)
    near_columns = (columns[:, None] - columns).abs() <= radius
    result = []
    for top in range(0, height, band):
        bottom = min(top + band, height)
        above, below = max(0, top - radius), min(height, bottom + radius)
        own, seen = (torch.arange(*ends, device=queries.device) for ends in ((top, bottom), (above, below)))
        near_rows = (own[:, None] - seen).abs() <= radius
        near = near_rows[:, None, :, None] & near_columns[None, :, None, :]  # query row and column, key row and column
        window = features[:, above:below]
        cosine = queries[top * width : bottom * width] @ window.reshape(-1, window.shape[-1]).T
        cosine.view(len(cosine), frames, -1).masked_fill_(~near.reshape(len(cosine), 1, -1), -torch.inf)
        result.append(
            _averaged(cosine, masks[:, :, above:below].permute(0, 2, 3, 1).reshape(-1, classes), topk, temperature)
        )
    return torch.cat(result).T.reshape(classes, height, width)


def _averaged(
    cosine: Float[Tensor, "q m"], masks: Float[Tensor, "m c"], topk: int, temperature: float
) -> Float[Tensor, "q c"]:
    """The masks of the `topk` largest cosines, and of any tied with the last, weighted by exp(cosine / temperature)."""
    one_more, place = cosine.topk(min(topk + 1, cosine.shape[1]))
    count = min(topk, cosine.shape[1])
    weights = (one_more[:, :count] / temperature).softmax(dim=1)
    result = (weights[..., None] * masks[place[:, :count]]).sum(dim=1)
    if one_more.shape[1] > count:
        tied = (one_more[:, count] == one_more[:, count - 1]).nonzero()[:, 0]
        if len(tied):
            kept = cosine[tied].masked_fill_(cosine[tied] < one_more[tied, count - 1 : count], -torch.inf)
            result[tied] = (kept / temperature).softmax(dim=1) @ masks
    return result


def hard_labels(
    mask: Float[Tensor, "c h w"], size: tuple[int, int], output: tuple[int, int] | None = None
) -> Int[Tensor, "H W"]:
    """The class of every pixel: resize to `size` (bilinear), stretch each class to [0, 1], take the largest.

    `output` is the size of the original frame if it differs; labels are resized to it by nearest neighbour.
    """
    smooth = F.interpolate(mask[None], size, mode="bilinear", align_corners=False)[0]
    low, high = smooth.amin(dim=(1, 2), keepdim=True), smooth.amax(dim=(1, 2), keepdim=True)
    stretched = torch.where(high > low, (smooth - low) / (high - low).clamp_min(1e-30), smooth)
    labels = stretched.argmax(dim=0)
    return labels if output in (None, size) else resize_labels(labels, output)


def largest_upsampled(
    shares: Float[Tensor, "c h w"], size: tuple[int, int], numbers_at_once: int = _SIMILARITIES
) -> UInt8[Tensor, "H W"]:
    """The class with the largest share at every pixel, after bilinear upsampling; at most 256 classes."""
    result = torch.empty(size, dtype=torch.uint8, device=shares.device)
    for rows, wide in _upsampled(shares, size, numbers_at_once):
        result[rows] = wide.argmax(dim=0).to(torch.uint8)
    return result


def largest_share(
    shares: Float[Tensor, "c h w"], size: tuple[int, int], numbers_at_once: int = _SIMILARITIES
) -> UInt8[Tensor, "H W"]:
    """That class's share of every pixel, as levels from 0 to 255."""
    result = torch.empty(size, dtype=torch.uint8, device=shares.device)
    for rows, wide in _upsampled(shares, size, numbers_at_once):
        result[rows] = (255 * wide.amax(dim=0)).round().clamp(0, 255).to(torch.uint8)
    return result


def _upsampled(
    shares: Float[Tensor, "c h w"], size: tuple[int, int], numbers_at_once: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows of the full size, and the shares there.

    Shares of all classes at full size would take gigabytes for a large photograph, so rows are upsampled in bands.
    """
    classes, height, _ = shares.shape
    band = max(1, numbers_at_once // (classes * size[1]))
    for top in range(0, size[0], band):
        rows = torch.arange(top, min(size[0], top + band), device=shares.device)
        place = ((rows + 0.5) * (height / size[0]) - 0.5).clamp(0, height - 1)  # as F.interpolate, without corners
        above = place.long()
        below, weight = (above + 1).clamp(max=height - 1), (place - above)[:, None].to(shares.dtype)
        lines = shares[:, above] * (1 - weight) + shares[:, below] * weight
        yield rows, F.interpolate(lines[None], (len(rows), size[1]), mode="bilinear", align_corners=False)[0]


def resize_labels(labels: Integer[Tensor, "h w"], size: tuple[int, int]) -> Integer[Tensor, "H W"]:
    """Labels at another size: each pixel takes the label of the nearest pixel centre."""
    rows, columns = (
        ((torch.arange(new, device=labels.device) * 2 + 1) * old // (2 * new))
        for old, new in zip(labels.shape, size, strict=True)
    )
    return labels[rows][:, columns]


def one_hot_masks(labels: Integer[Tensor, "h w"], classes: int) -> Float[Tensor, "{classes} h w"]:
    return F.one_hot(labels.long(), classes).permute(2, 0, 1).float()


def class_shares(
    labels: Integer[Tensor, "h w"], classes: int, grid: tuple[int, int]
) -> Float[Tensor, "{classes} rows columns"]:
    """The share of every class in every cell of the grid, so that objects smaller than a cell do not vanish.

    Labels of `classes` and above are void and ignored.
    """
    shares = [F.adaptive_avg_pool2d((labels == c).float()[None], grid)[0] for c in range(classes)]
    return torch.stack(shares)


def _unit(features: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    return F.normalize(features.float(), dim=1)
