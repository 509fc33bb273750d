"""Semantic FPN (Kirillov et al., 2019) on a pyramid of the network's tokens, as FLSL and SelfPatch fine-tune it.

A feature pyramid (1×1 convolutions, a top-down path of sums, 3×3 convolutions), then every level is brought to the
finest resolution by convolutions with batch norm, each followed by bilinear doubling, and all are added.

Not the decoder of segmentation_models_pytorch: that one leaves out the pyramid's 3×3 convolutions, uses group norm
where the papers' code uses batch norm, and takes only grids that halve without a remainder.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Literal

from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from asterism.finetuning.segmentation.heads.base import (
    Blocks,
    Logits,
    SegmentHead,
    SegmentHeadConfig,
    classifier,
    dropped_channels,
    level_blocks,
)
from asterism.nn.backbone import Backbone
from asterism.nn.batch_norm import SyncedBatchNorm2d
from asterism.nn.pyramid import build_pyramid
from asterism.ops import streams
from asterism.ranges import Count, ShareBelowOne
from asterism.types import Tokens


class FpnConfig(SegmentHeadConfig):
    """Settings of Semantic FPN."""

    least_images: ClassVar[int] = 2

    name: Literal["fpn"] = "fpn"
    blocks: Blocks | None = None  # None: 3, 5, 7 and 11 of 12 blocks, in proportion; FLSL: [2, 5, 8, 11]
    pyramid_channels: Count = 256
    channels: Count = 128  # of the convolutions that bring all levels to one resolution
    dropout: ShareBelowOne = 0.1  # of channels before the classifier

    def build(self, backbone: Backbone, classes: int) -> SemanticFpn:
        return SemanticFpn(self, backbone, classes)


class SemanticFpn(SegmentHead):
    """A pyramid of tokens, a feature pyramid on it, and the sum of all its levels at the finest resolution."""

    def __init__(self, config: FpnConfig, backbone: Backbone, classes: int) -> None:
        super().__init__()
        self.read_blocks = level_blocks(config.blocks, backbone, config.name)
        self.normed = False
        self.pyramid = build_pyramid(backbone)
        wide = config.pyramid_channels
        self.lateral = nn.ModuleList(nn.Conv2d(width, wide, kernel_size=1) for width in self.pyramid.widths)
        self.smooth = nn.ModuleList(nn.Conv2d(wide, wide, kernel_size=3, padding=1) for _ in self.pyramid.widths)
        finest = self.pyramid.strides[0]
        self.doublings = [round(math.log2(stride / finest)) for stride in self.pyramid.strides]
        self.rising = nn.ModuleList(_convolutions(wide, config.channels, max(1, count)) for count in self.doublings)
        self.classifier = classifier(config.channels, classes)
        self.dropout = config.dropout

    def read(
        self, backbone: Backbone, pixels: Float[Tensor, "b 3 h w"], drop_keys: Int[Tensor, " b"] | None
    ) -> list[Tokens]:
        return backbone.block_outputs(pixels, self.read_blocks, drop_keys=drop_keys)

    def forward(self, tokens: Sequence[Tokens], keys: Int[Tensor, " b"] | None) -> list[Logits]:
        levels = [layer(each) for layer, each in zip(self.lateral, self.pyramid(tokens), strict=True)]
        for level in reversed(range(len(levels) - 1)):
            size = (levels[level].shape[2], levels[level].shape[3])
            levels[level] = levels[level] + F.interpolate(levels[level + 1], size, mode="nearest")
        smooth = [layer(each) for layer, each in zip(self.smooth, levels, strict=True)]
        finest = (smooth[0].shape[2], smooth[0].shape[3])
        total = self._risen(0, smooth[0])
        for level in range(1, len(smooth)):
            risen = self._risen(level, smooth[level])
            total = total + F.interpolate(risen, finest, mode="bilinear", align_corners=False)
        return [self.classifier(dropped_channels(total, keys, self.dropout, streams.Segmentation.FPN))]

    def _risen(self, level: int, features: Float[Tensor, "b d h w"]) -> Float[Tensor, "b k _ _"]:
        """A level after its convolutions, each of which doubles its resolution, except on the finest level."""
        layers = self.rising[level]
        assert isinstance(layers, nn.ModuleList)
        for layer in layers:
            features = layer(features)
            if self.doublings[level]:
                features = F.interpolate(features, scale_factor=2, mode="bilinear", align_corners=False)
        return features


def _convolutions(inputs: int, channels: int, count: int) -> nn.ModuleList:
    return nn.ModuleList(
        nn.Sequential(
            nn.Conv2d(inputs if number == 0 else channels, channels, 3, padding=1, bias=False),
            SyncedBatchNorm2d(channels),
            nn.ReLU(inplace=True),
        )
        for number in range(count)
    )
