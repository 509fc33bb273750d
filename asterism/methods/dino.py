"""DINO: self-distillation with no labels (Caron et al., 2021).

A student sees every view of an image, a teacher only the two large ones. For each pair of different views the student
predicts, over K prototypes, what the teacher says. The teacher is an average of the student's past. It says something
definite (low temperature) but nothing always (its mean is subtracted), which keeps both from collapsing.

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
from collections.abc import Iterable
from typing import ClassVar, Literal

from pydantic import Field
from torch import nn

from asterism.methods._multi_crop import GLOBAL_VIEWS, MultiCropConfig, multi_crop_views
from asterism.methods.base import Method, MethodConfig
from asterism.nn.backbone import BackboneConfig, build_backbone, encode_views
from asterism.nn.center import Center
from asterism.nn.encoder import Encoder
from asterism.nn.heads import PrototypeHead, image_tokens
from asterism.nn.teacher import Teacher
from asterism.ops.losses import cross_view_loss, entropy, soft_targets
from asterism.ops.random import fold_each
from asterism.ops.schedules import cosine, ramp_per_epoch
from asterism.types import Batch, Losses, Progress, ViewSpec


class DinoConfig(MultiCropConfig):
    """Settings of DINO; the defaults suit a ViT-S/16. Temperatures divide logits; sizes are in pixels."""

    name: Literal["dino"] = "dino"

    # Head (section 3.1, "Network architecture", and appendix C)
    out_dim: int = Field(default=65536, gt=1)  # prototypes K
    hidden_dim: int = Field(default=2048, gt=0)
    bottleneck_dim: int = Field(default=256, gt=0)
    norm_last_layer: bool = True  # gains of the prototypes fixed to 1: stabler, for a little accuracy
    freeze_last_layer: int = Field(default=1, ge=0)  # epochs in which the prototypes stay as they are

    # Teacher (section 3.1, "Teacher network" and "Avoiding collapse"; section 3.2)
    momentum: float = Field(default=0.996, ge=0, le=1)  # λ at the start; a cosine takes it to 1
    center_momentum: float = Field(default=0.9, ge=0, lt=1)
    student_temp: float = Field(default=0.1, gt=0)
    warmup_teacher_temp: float = Field(default=0.04, gt=0)
    teacher_temp: float = Field(default=0.07, gt=0)
    warmup_teacher_temp_epochs: int = Field(default=30, ge=0)


class Dino(Method):
    """Student and teacher with a shared shape, and the centre of the teacher's logits."""

    Config: ClassVar[type[MethodConfig]] = DinoConfig

    def __init__(self, config: DinoConfig, backbone: BackboneConfig) -> None:
        super().__init__(config, backbone)
        self.config = config
        self.backbone = build_backbone(backbone)
        self.head = PrototypeHead(
            self.backbone.dim,
            config.out_dim,
            config.hidden_dim,
            config.bottleneck_dim,
            norm_last_layer=config.norm_last_layer,
        )
        self.teacher_backbone = Teacher(self.backbone)
        self.teacher_head = Teacher(self.head)
        self.center = Center(config.out_dim, config.center_momentum)
        self.collapse_loss = math.log(config.out_dim)
        self.view_specs = multi_crop_views(config, self.backbone)

    @property
    def views(self) -> tuple[ViewSpec, ...]:
        return self.view_specs

    def loss(self, batch: Batch, progress: Progress) -> Losses:
        config = self.config
        views = [view.pixels for view in batch.views]

        seen = image_tokens(encode_views(self.teacher_backbone, views[:GLOBAL_VIEWS]))
        teacher = self.teacher_head(seen)
        targets = soft_targets(teacher, self.center.value, self.teacher_temp(progress))
        self.center.accumulate(teacher)

        keys = [fold_each(batch.keys, number) for number in range(len(views))]
        student = self.head(image_tokens(encode_views(self.backbone, views, drop_keys=keys)))
        loss = cross_view_loss(targets, student, config.student_temp)

        predictions = (student[:GLOBAL_VIEWS].detach().float() / config.student_temp).softmax(dim=-1)
        target_entropy = entropy(targets)
        return Losses(
            terms={"dino": loss},
            metrics={
                "target_entropy": target_entropy,
                "prediction_entropy": entropy(predictions),
                "kl": loss.detach() - target_entropy,
                "center_norm": self.center.value.norm(),
            },
            embeddings=seen[0],
        )

    def teacher_temp(self, progress: Progress) -> float:
        """τ_t: rises in stairs of one epoch, because low temperatures are safe and higher ones teach more."""
        config = self.config
        return ramp_per_epoch(
            progress, config.warmup_teacher_temp_epochs, config.warmup_teacher_temp, config.teacher_temp
        )

    def frozen(self, progress: Progress) -> Iterable[nn.Parameter]:
        if progress.epoch < self.config.freeze_last_layer:
            return self.head.last_layer.parameters()
        return ()

    def after_update(self, progress: Progress) -> None:
        momentum = cosine(progress.step, progress.steps, self.config.momentum, 1.0)
        self.teacher_backbone.update(self.backbone, momentum)
        self.teacher_head.update(self.head, momentum)
        self.center.update()

    def backbone_was_loaded(self) -> None:
        self.teacher_backbone.update(self.backbone, momentum=0.0)

    def encoder(self) -> Encoder:
        """The teacher: it is ahead of its student throughout training."""
        return Encoder(self.teacher_backbone.network, self.mean, self.std)
