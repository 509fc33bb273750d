"""iBOT: image BERT pre-training with an online tokenizer (Zhou et al., 2022).

DINO, and beside it masked image modelling: in the student's large views some patches are hidden, and the student
predicts there what the teacher, which sees them, says about each. Usually one head serves images and patches, so that
what the teacher knows of whole images gives meaning to its "words" for patches.

    f_s, h_s; f_t, h_t    backbone, head, patch_head; teacher_backbone, teacher_head, teacher_patch_head
    u, v; û, v̂            the two large views; with hidden patches
    m, e_[MASK]           masks, backbone.mask_token
    P^[CLS], P^patch      targets and predictions over out_dim, patch_out_dim prototypes
    L_[CLS], L_MIM        terms cls, patch; λ1, λ2: cls_weight, patch_weight
    C, C'                 center, patch_center
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from pydantic import Field, model_validator
from torch import Tensor, nn

from asterism.methods._multi_crop import GLOBAL_VIEWS, MultiCropConfig, multi_crop_views
from asterism.methods._self_distillation import PrototypeDistillation, PrototypeHeadConfig, prototype_head
from asterism.methods.base import MethodConfig
from asterism.nn.backbone import BackboneConfig, build_backbone, encode_views
from asterism.nn.center import Center
from asterism.nn.heads import PrototypeHead, image_tokens
from asterism.nn.teacher import Teacher
from asterism.ops.block_masks import MaskConfig, draw_masks
from asterism.ops.losses import cross_entropy, cross_view_loss, entropy, masked_rows_mean, soft_targets
from asterism.ops.random import fold_each
from asterism.ops.schedules import ramp_per_epoch
from asterism.types import Batch, Losses, Progress, Tokens, ViewSpec

_MASKS = 0x1B  # tells the draw of masks from other uses of an image's key


class IbotConfig(MultiCropConfig, PrototypeHeadConfig):
    """Settings of iBOT; the defaults suit a ViT-S/16. Temperatures divide logits."""

    name: Literal["ibot"] = "ibot"

    # Masked image modelling (section 3.1 and appendix E)
    mask: MaskConfig = MaskConfig()
    cls_weight: float = Field(default=1.0, ge=0)  # λ1; 0 leaves the term out
    patch_weight: float = Field(default=1.0, ge=0)  # λ2; 0 leaves out the term and the masks

    # Head (section 3.2; sharing it: table 9)
    out_dim: int = Field(default=8192, gt=1)  # prototypes of images
    patch_out_dim: int | None = Field(default=None, gt=1)  # prototypes of patches, in a head of their own; None: shared

    # Teacher (appendix E)
    center_momentum: float = Field(default=0.9, ge=0, lt=1)
    patch_center_momentum: float = Field(default=0.9, ge=0, lt=1)
    warmup_teacher_patch_temp: float = Field(default=0.04, gt=0)  # of patches, for as long as that of images
    teacher_patch_temp: float = Field(default=0.07, gt=0)

    @model_validator(mode="after")
    def _something_to_learn(self) -> IbotConfig:
        if self.cls_weight == 0 and self.patch_weight == 0:
            raise ValueError("cls_weight and patch_weight are both 0; give at least one of them a positive weight")
        if self.cls_weight == 0 and self.patch_out_dim is not None:
            raise ValueError(
                "cls_weight = 0 leaves only patches, which need no head of their own; leave out patch_out_dim, and set "
                "out_dim"
            )
        return self


class Ibot(PrototypeDistillation[IbotConfig, PrototypeHead]):
    """Student and teacher with heads for images and patches, and the centres of the teacher's logits."""

    Config: ClassVar[type[MethodConfig]] = IbotConfig

    def __init__(self, config: IbotConfig, backbone: BackboneConfig) -> None:
        masking = config.patch_weight > 0
        own = config.patch_out_dim if masking else None
        network = build_backbone(backbone.model_copy(update={"mask_token": masking}))
        super().__init__(config, network, prototype_head(config, network.dim, config.out_dim))
        self.masking = masking
        self.center = Center(config.out_dim, config.center_momentum)
        self.patch_head = None if own is None else prototype_head(config, network.dim, own)
        self.teacher_patch_head = None if self.patch_head is None else Teacher(self.patch_head)
        self.patch_center = Center(own or config.out_dim, config.patch_center_momentum)
        self.view_specs = multi_crop_views(config, self.backbone)
        if config.cls_weight > 0:
            self.uniform_terms = {"cls": math.log(config.out_dim)}
        else:
            self.view_specs = self.view_specs[:GLOBAL_VIEWS]  # small views tell of whole images alone

    @property
    def pairs(self) -> Sequence[tuple[nn.Module, Teacher[Any]]]:
        if self.patch_head is None or self.teacher_patch_head is None:
            return super().pairs
        return [*super().pairs, (self.patch_head, self.teacher_patch_head)]

    @property
    def views(self) -> tuple[ViewSpec, ...]:
        return self.view_specs

    def loss(self, batch: Batch, progress: Progress) -> Losses:
        config = self.config
        views = [view.pixels for view in batch.views]
        masks = self.masks(batch)
        keys = [fold_each(batch.keys, number) for number in range(len(views))]

        seen = encode_views(self.teacher_backbone, views[:GLOBAL_VIEWS])
        tokens = encode_views(
            self.backbone, views, masks=[*masks, *[None] * (len(views) - GLOBAL_VIEWS)], drop_keys=keys
        )

        terms, metrics = {}, {}
        if config.cls_weight > 0:
            teacher = self.teacher_head(image_tokens(seen))
            targets = soft_targets(teacher, self.center.value, self.teacher_temp(progress))
            self.center.accumulate(teacher)
            student = self.head(image_tokens(tokens))
            terms["cls"] = cross_view_loss(targets, student, config.student_temp)
            predictions = (student[:GLOBAL_VIEWS].detach().float() / config.student_temp).softmax(dim=-1)
            metrics["target_entropy"] = entropy(targets)
            metrics["prediction_entropy"] = entropy(predictions)
            metrics["kl"] = terms["cls"].detach() - metrics["target_entropy"]
            metrics["center_norm"] = self.center.value.norm()
        if self.masking:
            mask = torch.cat([m for m in masks if m is not None])
            words = self.patch_targets(seen, mask, self.teacher_patch_temp(progress))
            hidden = (self.patch_head or self.head)(torch.cat([view.patches for view in tokens[:GLOBAL_VIEWS]])[mask])
            terms["patch"] = masked_rows_mean(cross_entropy(words, hidden, config.student_temp), mask)
            metrics["masked_share"] = mask.float().mean()
        return Losses(
            terms=terms,
            weights={"cls": config.cls_weight, "patch": config.patch_weight},
            metrics=metrics,
            embeddings=image_tokens(seen)[0],
        )

    def masks(self, batch: Batch) -> list[Bool[Tensor, "b n"] | None]:
        """For each large view the patches that the student does not see."""
        if not self.masking:
            return [None] * GLOBAL_VIEWS
        return [
            draw_masks(self.config.mask, fold_each(batch.keys, _MASKS, number), self.backbone.grid_of(view.pixels))
            for number, view in enumerate(batch.views[:GLOBAL_VIEWS])
        ]

    @torch.no_grad()
    def patch_targets(
        self, seen: list[Tokens], mask: Bool[Tensor, "b n"], temperature: float
    ) -> Float[Tensor, "rows k"]:
        """What the teacher says about the hidden patches; takes note of all patches for their centre.

        Logits are linear in the projections, so the mean logits of an image's patches are the logits of their mean
        projection: prototypes are compared with hidden patches and one mean per image, not with every patch.
        """
        head = (self.teacher_patch_head or self.teacher_head).network
        projected = head.project(torch.cat([view.patches for view in seen]))
        targets = soft_targets(head.last_layer(projected[mask]), self.patch_center.value, temperature)
        self.patch_center.accumulate(head.last_layer(projected.mean(dim=1)))
        return targets

    def teacher_patch_temp(self, progress: Progress) -> float:
        config = self.config
        return ramp_per_epoch(
            progress, config.warmup_teacher_temp_epochs, config.warmup_teacher_patch_temp, config.teacher_patch_temp
        )

    def after_update(self, progress: Progress) -> None:
        super().after_update(progress)
        if self.config.cls_weight > 0:
            self.center.update()
        if self.masking:
            self.patch_center.update()
