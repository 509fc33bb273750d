"""Objects found by clustering: their masks in two views of an image, and their neighbours in other images."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int, UInt8
from torch import Tensor

from asterism.ops.overlay import spotlight, tint
from asterism.viz.pictures import Pictures, to_uint8

_GAP = 4  # white columns between a query and what was retrieved for it


def object_masks(views: tuple[Pictures, Pictures], labels: Int[Tensor, "v b rows columns"]) -> dict[str, Pictures]:
    """Each view beside its objects. An object has the same colour in both views; label −1 (no object) is dark."""
    drawn = {}
    for number, (pictures, own) in enumerate(zip(views, labels, strict=True), start=1):
        drawn[f"view {number}"] = pictures
        drawn[f"objects {number}"] = to_uint8(tint(pictures.float() / 255, own.to(pictures.device)))
    return drawn


def object_matches(
    queries: Pictures,
    query_masks: Bool[Tensor, "b rows columns"],
    retrieved: Pictures,
    retrieved_masks: Bool[Tensor, "b rows columns"],
) -> UInt8[Tensor, "b 3 h wide"]:
    """A picture per match: the query's object at the left, the region that was retrieved for it at the right."""
    left, right = (
        spotlight(pictures.float() / 255, masks.to(pictures.device))
        for pictures, masks in ((queries, query_masks), (retrieved, retrieved_masks))
    )
    gap = left.new_ones(*left.shape[:-1], _GAP)
    return to_uint8(torch.cat([left, gap, right], dim=-1))


def drawn_matches(
    pictures: Pictures,
    labels: Int[Tensor, "b rows columns"],
    query: tuple[Int[Tensor, " m"], Int[Tensor, " m"]],
    found: tuple[Int[Tensor, " m"], Int[Tensor, " m"]],
) -> UInt8[Tensor, "m 3 h wide"]:
    """`object_matches` for pairs (image, object) by number, where all images are among `pictures`."""
    sides = [(pictures[image], labels[image] == number[:, None, None]) for image, number in (query, found)]
    return object_matches(*sides[0], *sides[1])
