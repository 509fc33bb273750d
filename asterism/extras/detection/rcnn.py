"""Faster, Mask and Cascade Mask R-CNN: torchvision's parts on a pyramid from a backbone's tokens.

Proposals, anchors, box coding, region pooling, losses and suppression are torchvision's. What differs is the choice of
regions, which is a function of each image's key, and that losses are means over the regions of all processes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torchvision.models.detection.faster_rcnn import FastRCNNConvFCHead, FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.models.detection.roi_heads import RoIHeads
from torchvision.models.detection.rpn import RegionProposalNetwork, RPNHead
from torchvision.ops import MultiScaleRoIAlign
from torchvision.ops.poolers import initLevelMapper

from asterism.errors import UserError
from asterism.extras.detection.cascade import AgnosticPredictor, CascadeRoIHeads
from asterism.extras.detection.features import LEVELS, PyramidFeatures, as_float32
from asterism.extras.detection.heads import (
    CascadeMaskRcnnConfig,
    DetectHead,
    FasterRcnnConfig,
    Found,
    HeadLosses,
    MaskRcnnConfig,
    Size,
    Targets,
    weighted_by_share,
)
from asterism.extras.detection.regions import Anchors, KeyedSampler
from asterism.extras.detection.table import Extent, Table, rcnn_table
from asterism.nn.backbone import Backbone
from asterism.ops import streams

_BOX_CELLS, _MASK_CELLS = 7, 14  # per side of a pooled region
_SAMPLES = 2  # per side of such a cell

# torchvision's name of a loss → ours, and what it is a mean over
_TERMS = {
    "loss_objectness": ("objectness", "proposals"),
    "loss_rpn_box_reg": ("proposal_box", "proposals"),
    "loss_classifier": ("class", "regions"),
    "loss_box_reg": ("box", "regions"),
    "loss_mask": ("mask", "objects"),
}


class Rcnn(DetectHead):
    """A pyramid, a network for region proposals, and one or several stages that look at the proposed regions."""

    def __init__(self, config: FasterRcnnConfig, backbone: Backbone, classes: int) -> None:
        super().__init__()
        self.has_masks = isinstance(config, MaskRcnnConfig)
        self.features = PyramidFeatures(backbone, config.pyramid, config.channels, config.window, config.whole_blocks)
        self.features.freeze_unused(backbone)
        self.stride = self.features.stride
        self.rpn = _proposals(config, self.features.strides, self.features.cells)
        if isinstance(config, CascadeMaskRcnnConfig):
            places = range(len(config.overlaps))
            stages = [_stage(config, classes, self.features.cells, place) for place in places]
            self.roi_heads: RoIHeads | CascadeRoIHeads = CascadeRoIHeads(stages, config.stage_weights)
        else:
            self.roi_heads = _stage(config, classes, self.features.cells)

    def losses(
        self,
        backbone: Backbone,
        images: Float[Tensor, "b 3 h w"],
        sizes: Sequence[Size],
        targets: Targets,
        keys: Int[Tensor, " b"],
    ) -> HeadLosses:
        maps = as_float32(self.features(backbone, images, keys))
        # Background is torchvision's class 0.
        counted = [{**target, "labels": target["labels"] + 1} for target in targets]
        with torch.autocast(images.device.type, enabled=False):
            return self.losses_of_maps(maps, images, sizes, counted, keys)

    def losses_of_maps(
        self,
        maps: dict[str, Tensor],
        images: Float[Tensor, "b 3 h w"],
        sizes: Sequence[Size],
        targets: Targets,
        keys: Int[Tensor, " b"],
    ) -> HeadLosses:
        """From the maps of a pyramid; labels count from 1."""
        for sampler in self._samplers():
            sampler.keys = keys
        proposals, of_proposals = self.rpn(ImageList(images, list(sizes)), maps, targets)
        _, of_regions = self.roi_heads(maps, proposals, list(sizes), targets)
        named: dict[str, Tensor] = {}
        counts: dict[str, float] = {}
        weights: dict[str, float] = {}
        for name, value in {**of_proposals, **of_regions}.items():
            plain, _, stage = name.partition("/")
            term, kind = _TERMS[plain]
            term += f"_{stage}" if stage else ""
            named[term] = value
            counts[term] = self._count(kind, int(stage or 1) - 1)
            if stage:
                assert isinstance(self.roi_heads, CascadeRoIHeads)
                weights[term] = self.roi_heads.weights[int(stage) - 1]
        return HeadLosses(weighted_by_share(named, counts), weights)

    def detections(self, backbone: Backbone, images: Float[Tensor, "b 3 h w"], sizes: Sequence[Size]) -> list[Found]:
        maps = as_float32(self.features(backbone, images, None))
        with torch.autocast(images.device.type, enabled=False):
            proposals, _ = self.rpn(ImageList(images, list(sizes)), maps)
            found, _ = self.roi_heads(maps, proposals, list(sizes))
        return [Found(each["boxes"], each["scores"], each["labels"] - 1, each.get("masks")) for each in found]

    def table(self, backbone: Backbone, images: Float[Tensor, "b 3 h w"], edges: Float[Tensor, 4]) -> Table:
        if images.dtype != torch.float32:
            raise UserError("the coordinates of an R-CNN's boxes need full precision; use --dtype float32")
        maps = self.features(backbone, images, None)
        heads = self.roi_heads
        stages = list(heads.stages) if isinstance(heads, CascadeRoIHeads) else [heads]
        return rcnn_table(self.rpn, stages, maps, Extent(edges, (images.shape[2], images.shape[3])))

    def _samplers(self) -> tuple[KeyedSampler, KeyedSampler]:
        return self.rpn.fg_bg_sampler, self.roi_heads.fg_bg_sampler

    def _count(self, kind: str, stage: int) -> float:
        """What a loss is a mean over, on this process."""
        proposals, regions = self._samplers()
        if kind == "proposals":
            return proposals.sampled
        if kind == "regions":
            return regions.sampled
        return self.roi_heads.objects[stage] if isinstance(self.roi_heads, CascadeRoIHeads) else regions.objects


def _proposals(config: FasterRcnnConfig, strides: Sequence[int], cells: Sequence[float]) -> RegionProposalNetwork:
    sides = [config.anchor_scale * stride for stride in (*strides, 2 * strides[-1])]
    network = RegionProposalNetwork(
        Anchors(sides, (*cells, 2 * cells[-1]), tuple(config.anchor_ratios)),
        RPNHead(config.channels, len(config.anchor_ratios), conv_depth=config.rpn_convolutions),
        fg_iou_thresh=0.7,
        bg_iou_thresh=0.3,
        batch_size_per_image=config.rpn_regions,
        positive_fraction=config.rpn_positive,
        pre_nms_top_n={"training": config.proposals, "testing": config.test_proposals},
        post_nms_top_n={"training": config.proposals, "testing": config.test_proposals},
        nms_thresh=config.rpn_nms,
    )
    network.fg_bg_sampler = KeyedSampler(config.rpn_regions, config.rpn_positive, streams.Detection.PROPOSALS)
    return network


def _stage(config: FasterRcnnConfig, classes: int, cells: Sequence[float], place: int | None = None) -> RoIHeads:
    """The heads that look at regions; cells: pixels per cell of the maps; place: the number of a stage of a cascade."""
    overlap, sharper = 0.5, 1
    if place is not None:
        assert isinstance(config, CascadeMaskRcnnConfig)
        overlap, sharper = config.overlaps[place], 1 + place
    predictor: Any = FastRCNNPredictor if place is None else AgnosticPredictor
    masks: dict[str, Any] = {}
    if isinstance(config, MaskRcnnConfig):
        layers = (config.mask_channels,) * config.mask_convolutions
        masks = {
            "mask_roi_pool": _pool(_MASK_CELLS, cells),
            "mask_head": MaskRCNNHeads(config.channels, layers, 1),
            "mask_predictor": MaskRCNNPredictor(config.mask_channels, config.mask_channels, 1 + classes),
        }
    heads = RoIHeads(
        _pool(_BOX_CELLS, cells),
        _box_layers(config),
        predictor(config.hidden, 1 + classes),
        fg_iou_thresh=overlap,
        bg_iou_thresh=overlap,
        batch_size_per_image=config.regions,
        positive_fraction=config.positive,
        bbox_reg_weights=tuple(weight * sharper for weight in (10.0, 10.0, 5.0, 5.0)),
        score_thresh=config.score_threshold,
        nms_thresh=config.nms,
        detections_per_img=config.detections,
        **masks,
    )
    heads.fg_bg_sampler = KeyedSampler(config.regions, config.positive, streams.Detection.REGIONS)
    return heads


def _pool(side: int, cells: Sequence[float]) -> MultiScaleRoIAlign:
    """Cuts regions out of maps.

    torchvision would take the scales of the maps from the first images that it sees, as the nearest powers of two. The
    padding is not counted there, so that a first batch of flat images would double every scale, for good.
    """
    pool = MultiScaleRoIAlign(LEVELS, side, _SAMPLES)
    pool.scales = [1 / cell for cell in cells]
    finest, coarsest = (round(math.log2(cell)) for cell in (cells[0], cells[-1]))
    pool.map_levels = initLevelMapper(finest, coarsest, pool.canonical_scale, pool.canonical_level)
    return pool


def _box_layers(config: FasterRcnnConfig) -> Any:
    if not config.box_convolutions:
        return TwoMLPHead(config.channels * _BOX_CELLS**2, config.hidden)
    shape = (config.channels, _BOX_CELLS, _BOX_CELLS)
    return FastRCNNConvFCHead(shape, [config.channels] * config.box_convolutions, [config.hidden])
