"""Pictures of CrIBo's objects: the same colours in two crops of an image, and an object's match in another image.

Images are in [0, 1]. Maps have one entry per patch on any grid; their cells stay visible.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from asterism.ops.clustering import mean_tokens, present_in_all
from asterism.ops.geometry import geometry_from_rows
from asterism.ops.neighbours import most_similar_row
from asterism.types import Tokens, View


def corner_views(pixels: Float[Tensor, "b 3 h w"]) -> tuple[View, View]:
    """Two crops of ¾ of each side: at the top left corner and, mirrored, at the bottom right one."""
    (b, _, height, width), device = pixels.shape, pixels.device
    tall, wide = round(0.75 * height), round(0.75 * width)
    views = []
    for top, left, flip in ((0, 0, False), (height - tall, width - wide, True)):
        crop = F.interpolate(
            pixels[:, :, top : top + tall, left : left + wide], (height, width), mode="bilinear", align_corners=False
        )
        row = torch.tensor([top, left, tall, wide, height, width, flip], dtype=torch.float32, device=device)
        views.append(View(crop.flip(-1) if flip else crop, geometry_from_rows(row.expand(b, -1))))
    return views[0], views[1]


def draw_objects(
    crops: Sequence[Float[Tensor, "b 3 h w"]], z: Sequence[Tokens], Q: Int[Tensor, "v b n"], clusters: int
) -> dict[str, Float[Tensor, "b 3 h w"]]:
    """Crops in [0, 1] with the objects present in both, each in one colour; then one object and its match."""
    shared = without_partners(Q, clusters)
    maps = [labels.view(len(labels), *tokens.grid) for labels, tokens in zip(shared, z, strict=True)]
    drawn = {f"objects of crop {number + 1}": tint(crop, maps[number]) for number, crop in enumerate(crops)}
    if len(crops[0]) > 1:
        objects = mean_tokens(torch.stack([view.patches for view in z]), shared, clusters)[0]
        shown, (image, match) = least_typical_objects(objects), nearest_in_another_image(objects)
        drawn["an object of crop 1"] = spotlight(crops[0], maps[0] == shown[:, None, None])
        drawn["nearest object in another image"] = spotlight(crops[0][image], maps[0][image] == match[:, None, None])
    return drawn


def without_partners(Q: Int[Tensor, "v b n"], clusters: int) -> Int[Tensor, "v b n"]:
    """Labels with −1 for clusters that are missing in one of the views."""
    alone = ~present_in_all(Q, clusters)
    return Q.masked_fill(alone.expand(len(Q), -1, -1).gather(2, Q), -1)


def least_typical_objects(objects: Float[Tensor, "b k d"]) -> Int[Tensor, " b"]:
    """The object of each image that is least similar to the sum of all objects; missing objects are zero."""
    present = objects.any(dim=-1)
    similarity = F.cosine_similarity(objects, objects.sum(dim=1, keepdim=True), dim=-1)
    return similarity.masked_fill(~present, torch.inf).argmin(dim=1)


def nearest_in_another_image(objects: Float[Tensor, "b k d"]) -> tuple[Int[Tensor, " b"], Int[Tensor, " b"]]:
    """For the least typical object of each image, the nearest object in another image, as (image, object)."""
    b, k, _ = objects.shape
    image = torch.arange(b, device=objects.device)
    slot = most_similar_row(
        objects[image, least_typical_objects(objects)],
        objects.flatten(0, 1),
        among=objects.any(dim=-1).flatten(),
        query_group=image,
        row_group=image.repeat_interleave(k),
    ).clamp_min(0)
    return slot // k, slot % k


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
