"""UPerNet (Xiao et al., 2018) on a pyramid of the network's tokens, as BEiT, iBOT and SOP fine-tune it.

The decoder is that of segmentation_models_pytorch without its layer norms on the levels, which makes it equal to
mmsegmentation's: pooling at four scales on the coarsest level, a top-down path of sums, and all levels fused at the
finest. Its batch norms use the images of all processes. As there, channels are dropped before the classifier, and an
auxiliary classifier on the third level adds 0.4 of its loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from jaxtyping import Float, Int
from torch import Tensor, nn

from asterism.errors import MissingExtra
from asterism.finetuning.segmentation.heads.base import (
    Blocks,
    Logits,
    SegmentHead,
    SegmentHeadConfig,
    block_tokens,
    check_norm,
    classifier,
    dropped_channels,
    level_blocks,
)
from asterism.nn.backbone import Backbone
from asterism.nn.batch_norm import SyncedBatchNorm2d
from asterism.nn.pyramid import build_pyramid
from asterism.ops import streams
from asterism.ranges import Count, NonNegative, ShareBelowOne
from asterism.types import Tokens

_AUXILIARY_LEVEL = 2


class UperNetConfig(SegmentHeadConfig):
    """Settings of UPerNet."""

    least_images: ClassVar[int] = 2

    name: Literal["upernet"] = "upernet"
    blocks: Blocks | None = None  # None: 3, 5, 7 and 11 of 12 blocks, in proportion for other depths; of Swin, stages
    final_norm: bool = False  # of the network, on the tokens of every block, as in iBOT's commands; not for Swin
    channels: Count | None = None  # None: as many as the network has, as in iBOT (768 for ViT-B)
    dropout: ShareBelowOne = 0.1  # of channels before the classifiers
    auxiliary: NonNegative = 0.4  # weight of the loss of the classifier on the third level; 0: without it
    auxiliary_channels: Count = 256

    def build(self, backbone: Backbone, classes: int) -> UperNet:
        return UperNet(self, backbone, classes)


class UperNet(SegmentHead):
    """A pyramid, the decoder and its classifiers."""

    def __init__(self, config: UperNetConfig, backbone: Backbone, classes: int) -> None:
        super().__init__()
        self.read_blocks = level_blocks(config.blocks, backbone, config.name)
        self.normed = check_norm(config.final_norm, backbone, config.name)
        self.pyramid = build_pyramid(backbone)
        channels = config.channels or backbone.dim
        self.decoder = upernet_decoder(self.pyramid.widths, channels)
        self.classifier = classifier(channels, classes)
        self.dropout = config.dropout
        self.auxiliary: nn.Module | None = None
        if config.auxiliary:
            self.weights = (1.0, config.auxiliary)
            width, inner = self.pyramid.widths[_AUXILIARY_LEVEL], config.auxiliary_channels
            self.auxiliary = nn.Sequential(
                nn.Conv2d(width, inner, 3, padding=1, bias=False), SyncedBatchNorm2d(inner), nn.ReLU(inplace=True)
            )
            self.auxiliary_classifier = classifier(inner, classes)

    def read(
        self, backbone: Backbone, pixels: Float[Tensor, "b 3 h w"], drop_keys: Int[Tensor, " b"] | None
    ) -> list[Tokens]:
        return block_tokens(backbone, pixels, self.read_blocks, drop_keys, normed=self.normed)

    def forward(self, tokens: Sequence[Tokens], keys: Int[Tensor, " b"] | None) -> list[Logits]:
        levels = self.pyramid(tokens)
        fused = self.decoder([None, None, *levels])  # the decoder skips the two finest of six resolutions
        found = [self.classifier(dropped_channels(fused, keys, self.dropout, streams.Segmentation.UPERNET))]
        if self.auxiliary is not None and keys is not None:
            features = dropped_channels(
                self.auxiliary(levels[_AUXILIARY_LEVEL]), keys, self.dropout, streams.Segmentation.UPERNET_AUXILIARY
            )
            found.append(self.auxiliary_classifier(features))
        return found


def upernet_decoder(widths: Sequence[int], channels: int) -> nn.Module:
    """The decoder for four levels of these widths, from fine to coarse."""
    try:
        from segmentation_models_pytorch.decoders.upernet.decoder import UPerNetDecoder
    except ImportError:
        raise MissingExtra("segmentation-models-pytorch", "segment") from None
    decoder: nn.Module = UPerNetDecoder((0, 0, *widths), encoder_depth=5, decoder_channels=channels)
    decoder.feature_norms = nn.ModuleList(nn.Identity() for _ in widths)
    _synchronise(decoder)
    return decoder


def _synchronise(module: Any) -> None:
    """Replace the batch norms, which have no state worth keeping yet, by those over all processes."""
    for name, child in module.named_children():
        if type(child) is nn.BatchNorm2d:
            setattr(module, name, SyncedBatchNorm2d(child.num_features, eps=child.eps))
        else:
            _synchronise(child)
