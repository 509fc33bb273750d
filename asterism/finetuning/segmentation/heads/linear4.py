"""One linear layer on the concatenated tokens of four blocks, on a frozen network: the linear segmentation of iBOT.

The blocks are 3, 5, 7 and 11 of 12, and in proportion for other depths. `final_norm` puts the network's last norm on
the tokens of each, as iBOT's published commands do, though its configuration does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from jaxtyping import Float, Int
from torch import Tensor, nn

from asterism.errors import UserError
from asterism.finetuning.segmentation.heads.base import (
    Blocks,
    Logits,
    SegmentHead,
    SegmentHeadConfig,
    block_tokens,
    check_norm,
    classifier,
    concatenated,
    level_blocks,
)
from asterism.nn.backbone import Backbone
from asterism.nn.pyramid import token_map
from asterism.types import Tokens


class Linear4Config(SegmentHeadConfig):
    """Settings of iBOT's linear head."""

    freezes: ClassVar[bool] = True

    name: Literal["linear4"] = "linear4"
    blocks: Blocks | None = None  # None: 3, 5, 7 and 11 of 12 blocks, in proportion for other depths
    final_norm: bool = False  # of the network, on the tokens of every block

    def build(self, backbone: Backbone, classes: int) -> Linear4Head:
        return Linear4Head(self, backbone, classes)


class Linear4Head(SegmentHead):
    """A 1×1 convolution on the tokens of four blocks."""

    def __init__(self, config: Linear4Config, backbone: Backbone, classes: int) -> None:
        super().__init__()
        if backbone.first_block > 0:
            raise UserError(
                "head=linear4 concatenates the tokens of four blocks, but those of a Swin's stages have different "
                "grids; choose head=linear, upernet or fpn, or a ViT"
            )
        self.read_blocks = level_blocks(config.blocks, backbone, config.name)
        self.normed = check_norm(config.final_norm, backbone, config.name)
        self.classifier = classifier(4 * backbone.dim, classes)

    def read(
        self, backbone: Backbone, pixels: Float[Tensor, "b 3 h w"], drop_keys: Int[Tensor, " b"] | None
    ) -> list[Tokens]:
        return block_tokens(backbone, pixels, self.read_blocks, drop_keys, normed=self.normed)

    def probed_layer(self) -> nn.Conv2d:
        return self.classifier

    def inputs(self, tokens: Sequence[Tokens]) -> Float[Tensor, "b n d"]:
        return concatenated([token_map(each) for each in tokens]).flatten(2).mT

    def forward(self, tokens: Sequence[Tokens], keys: Int[Tensor, " b"] | None) -> list[Logits]:
        return [self.classifier(concatenated([token_map(each) for each in tokens]))]
