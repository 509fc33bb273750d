"""DINO: self-distillation with no labels (Caron et al., 2021).

The student sees every view of an image, the teacher only the two large ones. For each pair of different views the
student predicts the teacher's distribution over K prototypes. The teacher is a momentum encoder. Its targets are
sharpened (low temperature) and centred (a running mean is subtracted), which together prevent collapse.

    g_θs, g_θt      backbone and head; teacher_backbone and teacher_head
    {x_1^g, x_2^g}  the first two views;  V: all views
    P_s, τ_s        softmax of student logits, student_temp
    P_t, τ_t        targets, teacher_temp (from warmup_teacher_temp)
    C, m            center, center_momentum
    λ               momentum of the teacher, from momentum to 1
    K               out_dim
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal

from asterism.methods.base import MethodConfig
from asterism.methods.parts.self_distillation import (
    PrototypeDistillation,
    PrototypeHeadConfig,
    prototype_entropies,
    prototype_head,
)
from asterism.methods.parts.views import GLOBAL_VIEWS, MultiCropConfig, multi_crop_views
from asterism.nn.backbone import BackboneConfig, encode_views
from asterism.nn.center import Center
from asterism.nn.heads import PrototypeHead, image_tokens
from asterism.ops.losses import cross_view_loss, soft_targets
from asterism.ops.random import fold_each
from asterism.ranges import CountFromTwo, ShareBelowOne
from asterism.types import Batch, Losses, Progress, ViewSpec


class DinoConfig(MultiCropConfig, PrototypeHeadConfig):
    """Settings of DINO; the defaults suit a ViT-S/16. Temperatures divide logits; sizes are in pixels."""

    name: Literal["dino"] = "dino"

    out_dim: CountFromTwo = 65536  # prototypes K (section 3.1, "Network architecture", and appendix C)
    center_momentum: ShareBelowOne = 0.9  # section 3.1, "Avoiding collapse"


class Dino(PrototypeDistillation[DinoConfig, PrototypeHead]):
    """Student and teacher of the same shape, and the centre of the teacher's logits."""

    Config: ClassVar[type[MethodConfig]] = DinoConfig

    def __init__(self, config: DinoConfig, backbone: BackboneConfig) -> None:
        super().__init__(config, backbone, lambda dim: prototype_head(config, dim, config.out_dim))
        self.center = Center(config.out_dim, config.center_momentum)
        self.uniform_terms = {"dino": math.log(config.out_dim)}

    @property
    def views(self) -> tuple[ViewSpec, ...]:
        return multi_crop_views(self.config, self.backbone)

    def loss(self, batch: Batch, progress: Progress) -> Losses:
        views = [view.pixels for view in batch.views]

        seen = image_tokens(encode_views(self.teacher_backbone, views[:GLOBAL_VIEWS], needed=["none"] * GLOBAL_VIEWS))
        teacher = self.teacher_head(seen)
        targets = soft_targets(teacher, self.center.value, self.teacher_temp(progress))
        self.center.accumulate(teacher)

        keys = [fold_each(batch.keys, number) for number in range(len(views))]
        tokens = encode_views(self.backbone, views, drop_keys=keys, needed=["none"] * len(views))
        student = self.head(image_tokens(tokens))
        loss = cross_view_loss(targets, student, self.config.student_temp)
        metrics = prototype_entropies(loss, targets, student[:GLOBAL_VIEWS], self.config.student_temp)
        return Losses(
            terms={"dino": loss}, metrics=metrics | {"center_norm": self.center.value.norm()}, embeddings=seen[0]
        )

    def after_update(self, progress: Progress) -> None:
        super().after_update(progress)
        self.center.update()
