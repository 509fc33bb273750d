"""A method whose features approach a constant."""

from __future__ import annotations

from typing import Literal

from asterism.methods.base import Method, MethodConfig
from asterism.nn.encoder import Encoder
from asterism.ranges import Number
from asterism.types import Batch, Losses, Progress, ViewSpec


class ConstantConfig(MethodConfig):
    """Settings of the method."""

    name: Literal["constant"] = "constant"
    target: Number = 1.0


class Constant(Method):
    """A backbone whose mean feature is trained."""

    Config = ConstantConfig
    config: ConstantConfig

    @property
    def views(self) -> tuple[ViewSpec, ...]:
        return (ViewSpec(size=self.backbone.image_size),)

    def loss(self, batch: Batch, progress: Progress) -> Losses:
        features = self.backbone(batch.views[0].pixels).patches
        return Losses({"constant": (features.mean() - self.config.target).square()})

    def encoder(self) -> Encoder:
        return Encoder(self.backbone, self.mean, self.std)
