"""One linear layer on the patch tokens, on a frozen network: the linear segmentation of CrIBo and of STELLAR.

CrIBo takes the tokens after the final norm, or those of the last four blocks, each normed and concatenated (its table
7), and computes the loss on pixels after bilinear upsampling. STELLAR puts a batch norm before the layer and computes
the loss on patches (`task.loss_on=patches`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from asterism.errors import UserError
from asterism.finetuning.segmentation.heads.base import (
    Logits,
    SegmentHead,
    SegmentHeadConfig,
    block_tokens,
    classifier,
)
from asterism.nn.backbone import Backbone
from asterism.nn.batch_norm import SyncedBatchNorm2d
from asterism.ranges import Few
from asterism.types import Tokens


class LinearConfig(SegmentHeadConfig):
    """Settings of the linear head."""

    freezes: ClassVar[bool] = True

    name: Literal["linear"] = "linear"
    layers: Few = 1  # last blocks whose tokens are concatenated
    norm: bool = False  # a batch norm before the layer

    def build(self, backbone: Backbone, classes: int) -> LinearHead:
        return LinearHead(self, backbone, classes)


class LinearHead(SegmentHead):
    """A 1×1 convolution, after a batch norm if wanted."""

    def __init__(self, config: LinearConfig, backbone: Backbone, classes: int) -> None:
        super().__init__()
        there = backbone.depth - backbone.first_block
        if config.layers > there:
            raise UserError(
                f"task.head.layers = {config.layers}: the network has {there} blocks whose tokens have its final grid; "
                f"choose at most {there}"
            )
        self.layers = config.layers
        width = backbone.dim * config.layers
        self.norm = SyncedBatchNorm2d(width) if config.norm else nn.Identity()
        self.classifier = classifier(width, classes)

    def read(
        self, backbone: Backbone, pixels: Float[Tensor, "b 3 h w"], drop_keys: Int[Tensor, " b"] | None
    ) -> list[Tokens]:
        if self.layers == 1:
            return [backbone(pixels, drop_keys=drop_keys)]
        return block_tokens(backbone, pixels, range(-self.layers, 0), drop_keys, normed=True)

    def probed_layer(self) -> nn.Conv2d | None:
        """Not after a batch norm, which a frozen network's features have not gone through yet."""
        return self.classifier if isinstance(self.norm, nn.Identity) else None

    def inputs(self, tokens: Sequence[Tokens]) -> Float[Tensor, "b n d"]:
        return torch.cat([each.patches for each in tokens], dim=2)

    def forward(self, tokens: Sequence[Tokens], keys: Int[Tensor, " b"] | None) -> list[Logits]:
        logits = self._logits(self.inputs(tokens))
        return [logits.mT.reshape(logits.shape[0], -1, *tokens[0].grid)]

    def _logits(self, patches: Float[Tensor, "b n d"]) -> Float[Tensor, "b n c"]:
        """The patches as a map of one column."""
        return self.classifier(self.norm(patches.mT[..., None]))[..., 0].mT
