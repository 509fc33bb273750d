"""Detections as tables with the same number of rows for every image, for graphs that are recorded.

The number of detections varies from image to image, so `Rcnn.detections` returns a list. Here the rows that are left
over have the score 0 and the label −1, and nothing depends on the number of images: their boxes are suppressed in one
call, after the boxes of every image and class were moved to a place of their own. The result is otherwise the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torchvision.models.detection.roi_heads import RoIHeads
from torchvision.models.detection.rpn import RegionProposalNetwork
from torchvision.ops import MultiScaleRoIAlign, nms, roi_align

Maps = Mapping[str, Float[Tensor, "b c _ _"]]

_LEAST_SIDE = 1e-2  # pixels: smaller detections are left out, as by torchvision
_PLACES = 32  # of groups of boxes in a row; a square of places keeps the coordinates small, and so exact


@dataclass(frozen=True)
class Table:
    """Detections by descending score."""

    boxes: Float[Tensor, "b n 4"]
    scores: Float[Tensor, "b n"]  # 0: nothing
    labels: Int[Tensor, "b n"]  # −1: nothing
    masks: Float[Tensor, "b n m m"] | None  # probabilities inside each box

    def named(self) -> dict[str, Tensor]:
        found = {"boxes": self.boxes, "scores": self.scores, "labels": self.labels}
        return found if self.masks is None else {**found, "masks": self.masks}


@dataclass(frozen=True)
class Extent:
    """Where boxes may be."""

    edges: Float[Tensor, 4]  # width, height, width, height of the images, without padding
    canvas: tuple[int, int]  # height and width with padding

    def clipped(self, boxes: Float[Tensor, "*n 4"]) -> Float[Tensor, "*n 4"]:
        return torch.minimum(boxes.clamp_min(0), self.edges)


def rcnn_table(rpn: RegionProposalNetwork, stages: list[RoIHeads], maps: Maps, extent: Extent) -> Table:
    """The detections of an R-CNN with one stage, or of a cascade."""
    regions, there = _regions(rpn, maps, extent)
    total: Any = 0
    for stage in stages:
        last, before = stage, regions
        logits, moves = stage.box_predictor(stage.box_head(_pooled(stage.box_roi_pool, maps, regions)))
        total = total + logits / len(stages)
        first: Tensor = stage.box_coder.decode_single(moves[:, :4], regions.flatten(0, 1))
        regions = extent.clipped(first).view_as(regions)
    by_class: Tensor = last.box_coder.decode_single(moves, before.flatten(0, 1))
    boxes = extent.clipped(by_class.view(-1, before.shape[1], total.shape[1], 4))[:, :, 1:]  # without background
    scores = total.softmax(dim=1).view(-1, before.shape[1], total.shape[1])[..., 1:]
    labels = (torch.ones_like(scores).cumsum(2) - 1).flatten(1)
    allowed = (scores > last.score_thresh) & there[..., None] & _wide(boxes, _LEAST_SIDE)
    classes = scores.shape[2]
    boxes, scores, allowed = boxes.flatten(1, 2), scores.flatten(1), allowed.flatten(1)
    kept = _unsuppressed(boxes, scores, labels, classes, allowed, last.nms_thresh, extent)
    found = top_rows(boxes, torch.where(kept, scores, 0), labels, last.detections_per_img)
    if not last.has_mask():
        return found
    return Table(found.boxes, found.scores, found.labels, _masks(stages, maps, found))


def top_rows(
    boxes: Float[Tensor, "b n 4"], scores: Float[Tensor, "b n"], labels: Float[Tensor, "b n"], most: int
) -> Table:
    """The rows of highest score; those with a score of 0 are nothing."""
    best, place = scores.topk(min(most, scores.shape[1]), dim=1)
    something = best > 0
    return Table(
        torch.where(something[..., None], _rows(boxes, place), 0),
        best,
        torch.where(something, labels.gather(1, place), -1).long(),
        None,
    )


def _regions(
    rpn: RegionProposalNetwork, maps: Maps, extent: Extent
) -> tuple[Float[Tensor, "b n 4"], Bool[Tensor, "b n"]]:
    """Proposed regions, by descending score, and which of the rows hold one."""
    boxes, scores, levels = [], [], []
    generator: Any = rpn.anchor_generator
    found = zip(*rpn.head(list(maps.values())), generator.by_map(list(maps.values())), strict=True)
    for level, (logits, moves, anchors) in enumerate(found):
        every = logits.permute(0, 2, 3, 1).flatten(1)
        best, place = every.topk(min(rpn.pre_nms_top_n(), every.shape[1]), dim=1)
        wanted = _rows(moves.unflatten(1, (-1, 4)).permute(0, 3, 4, 1, 2).flatten(1, 3), place)
        decoded: Tensor = rpn.box_coder.decode_single(wanted.flatten(0, 1), anchors[place].flatten(0, 1))
        boxes.append(extent.clipped(decoded.view(-1, place.shape[1], 4)))
        scores.append(best.sigmoid())
        levels.append(torch.full_like(best, level))
    box, score, level_of = torch.cat(boxes, 1), torch.cat(scores, 1), torch.cat(levels, 1)
    kept = _unsuppressed(box, score, level_of, len(maps), _wide(box, rpn.min_size), rpn.nms_thresh, extent)
    best, place = torch.where(kept, score, -1).topk(min(rpn.post_nms_top_n(), score.shape[1]), dim=1)
    return _rows(box, place), best >= 0


def _unsuppressed(
    boxes: Float[Tensor, "b n 4"],
    scores: Float[Tensor, "b n"],
    groups: Float[Tensor, "b n"],
    count: int,
    allowed: Bool[Tensor, "b n"],
    overlap: float,
    extent: Extent,
) -> Bool[Tensor, "b n"]:
    """The allowed boxes that no better one of their image and group overlaps. count: of groups."""
    group = _image_of(scores) * count + groups
    side = max(extent.canvas) + 1
    across, down = side * (group % _PLACES), side * (group / _PLACES).floor()
    moved = boxes + torch.stack([across, down, across, down], dim=2)
    places = allowed.flatten().nonzero()[:, 0]
    best = nms(moved.flatten(0, 1)[places], scores.flatten()[places], overlap)
    kept = torch.zeros_like(scores).flatten().index_fill(0, places[best], 1)
    return kept.view_as(scores) > 0


def _pooled(pool: MultiScaleRoIAlign, maps: Maps, boxes: Float[Tensor, "b n 4"]) -> Float[Tensor, "rows c k k"]:
    """The features of regions, each cut from the map that suits its size."""
    assert pool.scales is not None
    assert pool.map_levels is not None
    image = _image_of(boxes[..., 0]) + torch.zeros_like(boxes[..., 0])
    regions = torch.cat([image[..., None], boxes], dim=2).flatten(0, 1)
    levels = pool.map_levels([boxes.flatten(0, 1)])
    channels = maps[pool.featmap_names[0]].shape[1]
    found = torch.zeros_like(regions[:, :1, None, None]).expand(-1, channels, *pool.output_size)
    for level, (name, scale) in enumerate(zip(pool.featmap_names, pool.scales, strict=True)):
        here = (levels == level).nonzero()[:, 0]
        cut = roi_align(maps[name], regions[here], pool.output_size, scale, pool.sampling_ratio)
        found = found.index_copy(0, here, cut)
    return found


def _masks(stages: list[RoIHeads], maps: Maps, found: Table) -> Float[Tensor, "b n m m"]:
    """The masks of the found classes, averaged over stages."""
    every: Tensor = sum(
        stage.mask_predictor(stage.mask_head(_pooled(stage.mask_roi_pool, maps, found.boxes))).sigmoid()
        for stage in stages
    ) / len(stages)
    own = (found.labels + 1).flatten()[:, None, None, None].expand(-1, 1, *every.shape[2:])  # background is 0
    return every.gather(1, own).view(-1, found.labels.shape[1], *every.shape[2:])


def _rows(values: Float[Tensor, "b n 4"], place: Int[Tensor, "b m"]) -> Float[Tensor, "b m 4"]:
    return values.gather(1, place[..., None].expand(-1, -1, 4))


def _wide(boxes: Float[Tensor, "*n 4"], least: float) -> Bool[Tensor, "*n"]:
    return ((boxes[..., 2:] - boxes[..., :2]) >= least).all(dim=-1)


def _image_of(rows: Float[Tensor, "b n"]) -> Float[Tensor, "b 1"]:
    """The number of each image in the batch."""
    return torch.ones_like(rows[:, :1]).cumsum(0) - 1
