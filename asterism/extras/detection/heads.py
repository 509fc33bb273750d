"""The heads of detection by name, their settings, and what they have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import torch
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor, nn

from asterism.config import Config
from asterism.extras.detection.table import Table
from asterism.nn.backbone import Backbone
from asterism.ops import collectives
from asterism.ranges import Count, Few, FewFromZero, InnerShare, NonNegative, Positive, Share

Size = tuple[int, int]  # height and width
Targets = Sequence[Mapping[str, Any]]  # per image: boxes [m, 4], labels [m] from 0, and masks [m, h, w] if needed


class DetectHeadConfig(Config):
    """What all heads have."""

    name: str
    score_threshold: Share = 0.05  # detections below are not returned
    detections: Few = 100  # at most, per image


class FasterRcnnConfig(DetectHeadConfig):
    """Faster R-CNN on a pyramid: region proposals, then a class and a box for each. Defaults are torchvision's."""

    name: Literal["faster-rcnn"] = "faster-rcnn"
    pyramid: Literal["levels", "simple"] = "levels"  # of four blocks with an FPN; simple: ViTDet's, of the last block
    window: Count | None = None  # patches per side of an attention window, with simple; None: attention everywhere
    whole_blocks: Few = 4  # blocks that attend everywhere although there are windows
    channels: Count = 256  # of the pyramid's maps
    anchor_scale: Positive = 8.0  # side of an anchor over the stride of its map: 32 pixels at stride 4
    anchor_ratios: tuple[Positive, ...] = Field(default=(0.5, 1.0, 2.0), min_length=1, max_length=16)  # height / width
    rpn_convolutions: Few = 1
    rpn_regions: Count = 256  # per image, in the loss of the proposals
    rpn_positive: InnerShare = 0.5  # at most this share of them are objects
    rpn_nms: InnerShare = 0.7
    proposals: Count = 2000  # kept in training, before and after suppression
    test_proposals: Count = 1000
    box_convolutions: FewFromZero = 0  # before the fully connected layers; 0: two such layers, as in torchvision
    hidden: Count = 1024  # width of the fully connected layers
    regions: Count = 512  # per image, in the loss of the boxes
    positive: InnerShare = 0.25
    nms: InnerShare = 0.5


class MaskRcnnConfig(FasterRcnnConfig):
    """Mask R-CNN: Faster R-CNN with a mask of 28×28 cells for each detection."""

    name: Literal["mask-rcnn"] = "mask-rcnn"  # type: ignore[assignment]
    mask_convolutions: Few = 4
    mask_channels: Count = 256


class CascadeMaskRcnnConfig(MaskRcnnConfig):
    """Cascade Mask R-CNN: stages that refine each other's boxes, trained at rising overlaps."""

    name: Literal["cascade-mask-rcnn"] = "cascade-mask-rcnn"  # type: ignore[assignment]
    overlaps: tuple[InnerShare, ...] = Field(default=(0.5, 0.6, 0.7), min_length=1, max_length=8)  # IoU of an object
    stage_weights: tuple[NonNegative, ...] = Field(default=(1.0, 0.5, 0.25), min_length=1, max_length=8)  # of losses


class YolosConfig(DetectHeadConfig):
    """YOLOS: detection tokens in the sequence of a plain ViT, each of which names one object or none."""

    name: Literal["yolos"] = "yolos"
    score_threshold: Share = 0.0
    tokens: Annotated[int, Field(ge=1, le=10_000)] = 100
    box_weight: NonNegative = 5.0  # of the L1 distance, in the loss and in the matching
    giou_weight: NonNegative = 2.0
    nothing_weight: Positive = 0.1  # of tokens without an object, in the cross-entropy


HEADS: Mapping[str, type[DetectHeadConfig]] = {
    "faster-rcnn": FasterRcnnConfig,
    "mask-rcnn": MaskRcnnConfig,
    "cascade-mask-rcnn": CascadeMaskRcnnConfig,
    "yolos": YolosConfig,
}


@dataclass(frozen=True)
class HeadLosses:
    """Loss terms: their average over processes is the mean over the regions or objects of all images."""

    terms: Mapping[str, Float[Tensor, ""]]
    weights: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Found:
    """The detections of one image of a batch, in its pixels, by descending score."""

    boxes: Float[Tensor, "n 4"]
    scores: Float[Tensor, " n"]
    labels: Int[Tensor, " n"]  # from 0
    masks: Float[Tensor, "n 1 m m"] | None  # probabilities inside each box; None: the head has no masks


class DetectHead(nn.Module, ABC):
    """From images to detections, through a backbone that is passed in so that it is registered once."""

    stride: int  # pixels: sides of the batch must be multiples of it
    has_masks: bool

    @abstractmethod
    def losses(
        self,
        backbone: Backbone,
        images: Float[Tensor, "b 3 h w"],
        sizes: Sequence[Size],
        targets: Targets,
        keys: Int[Tensor, " b"],
    ) -> HeadLosses:
        """sizes: of the images without the padding to the right and below. keys: of every image, for all draws."""

    @abstractmethod
    def detections(
        self, backbone: Backbone, images: Float[Tensor, "b 3 h w"], sizes: Sequence[Size]
    ) -> list[Found]: ...

    @abstractmethod
    def table(self, backbone: Backbone, images: Float[Tensor, "b 3 h w"], edges: Float[Tensor, 4]) -> Table:
        """The same for recorded graphs. edges: width, height, width, height of all images without the padding."""


def weighted_by_share(
    losses: Mapping[str, Float[Tensor, ""]], counts: Mapping[str, float]
) -> dict[str, Float[Tensor, ""]]:
    """Losses whose average over processes is the mean over everything that was counted.

    losses: each a mean over the things that this process has; counts: how many these are. A process with more of them
    gets more weight; with one process the losses are unchanged. A collective: every process calls it, with the same
    names.
    """
    world = collectives.world_size()
    if world == 1:
        return dict(losses)
    names = sorted(losses)
    device = losses[names[0]].device
    own = torch.tensor([float(counts[name]) for name in names], dtype=torch.float64)
    total = collectives.all_reduce_sum(own.float().to(device)).double().cpu()
    weights = (own * world / total.clamp_min(1)).tolist()
    return {name: losses[name] * weight for name, weight in zip(names, weights, strict=True)}


def build_head(config: DetectHeadConfig, backbone: Backbone, classes: int) -> DetectHead:
    """A head with fresh weights, from torch's default generator."""
    if isinstance(config, YolosConfig):
        from asterism.extras.detection.yolos import Yolos

        return Yolos(config, backbone, classes)
    from asterism.extras.detection.rcnn import Rcnn

    assert isinstance(config, FasterRcnnConfig)
    return Rcnn(config, backbone, classes)
