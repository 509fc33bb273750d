"""iBOT: image BERT pre-training with an online tokenizer (Zhou et al., 2022).

DINO with masked image modelling: some patches of the student's large views are masked, and the student predicts the
output of the teacher, which sees them, for each. Usually images and patches share prototypes, so that the semantics
learned from whole images carry over to patches.

    f_s, h_s; f_t, h_t    backbone, head; teacher_backbone, teacher_head
    u, v; û, v̂            the two large views; with masked patches
    m, e_[MASK]           masks, backbone.mask_token
    P^[CLS], P^patch      targets and predictions over out_dim, patch_out_dim prototypes (levels of the head)
    L_[CLS], L_MIM        terms cls, patch; λ1, λ2: cls_weight, patch_weight
    C, C'                 center, patch_center
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from pydantic import model_validator
from torch import Tensor

from asterism.methods.base import MethodConfig
from asterism.methods.parts.self_distillation import (
    PrototypeDistillation,
    PrototypeHeadConfig,
    leveled_prototype_head,
    prototype_entropies,
)
from asterism.methods.parts.views import GLOBAL_VIEWS, MultiCropConfig, draw_view_masks, multi_crop_views
from asterism.nn.backbone import BackboneConfig, encode_views
from asterism.nn.center import Center
from asterism.nn.heads import LeveledPrototypeHead, image_tokens
from asterism.nn.needed_outputs import NeededPatches
from asterism.ops import streams
from asterism.ops.block_masks import MaskConfig
from asterism.ops.losses import cross_entropy, cross_view_loss, masked_rows_mean, soft_targets
from asterism.ops.masking import rows_at
from asterism.ops.random import fold_each
from asterism.ops.schedules import ramp
from asterism.ranges import CountFromTwo, NonNegative, ShareBelowOne, Temperature
from asterism.types import Batch, Losses, Progress, Tokens, ViewSpec


class IbotConfig(MultiCropConfig, PrototypeHeadConfig):
    """Settings of iBOT; the defaults suit a ViT-S/16. Temperatures divide logits."""

    name: Literal["ibot"] = "ibot"

    # Masked image modelling (section 3.1 and appendix E)
    mask: MaskConfig = MaskConfig()
    cls_weight: NonNegative = 1.0  # λ1; 0 leaves the term out
    patch_weight: NonNegative = 1.0  # λ2; 0 leaves out the term and the masks

    # Head (section 3.2; sharing prototypes: table 9)
    out_dim: CountFromTwo = 8192  # prototypes of images
    patch_out_dim: CountFromTwo | None = None  # prototypes of patches; None: the same as for images
    teacher_prototypes: Literal["as-student", "image"] = "as-student"
    # image: the teacher uses its image prototypes for patches even if the student has separate ones, which then have
    # no counterpart in the teacher (default of the published script; the published runs share all prototypes)

    # Teacher (appendix E)
    center_momentum: ShareBelowOne = 0.9
    patch_center_momentum: ShareBelowOne = 0.9
    patch_center_of: Literal["all", "masked"] = "all"  # patches whose logits it averages
    # Differs from the paper: with masked, the teacher describes masked patches alone, which saves most of its head.
    warmup_teacher_patch_temp: Temperature = 0.04  # of patches; same warm-up length as for images
    teacher_patch_temp: Temperature = 0.07

    @model_validator(mode="after")
    def _something_to_learn(self) -> IbotConfig:
        if self.cls_weight == 0 and self.patch_weight == 0:
            raise ValueError("cls_weight and patch_weight are both 0; give at least one of them a positive weight")
        if self.cls_weight == 0 and self.patch_out_dim is not None:
            raise ValueError(
                "cls_weight = 0 leaves only patches, which need no separate prototypes; leave out patch_out_dim, "
                "and set out_dim"
            )
        if self.teacher_prototypes == "image" and self.patch_out_dim != self.out_dim:
            raise ValueError(
                f"teacher_prototypes: image gives the student's patches {self.out_dim} targets; set patch_out_dim, "
                f"which is {self.patch_out_dim}, to out_dim"
            )
        return self


class Ibot(PrototypeDistillation[IbotConfig, LeveledPrototypeHead]):
    """Student and teacher with prototypes of images and patches, and the centres of the teacher's logits."""

    Config: ClassVar[type[MethodConfig]] = IbotConfig

    def __init__(self, config: IbotConfig, backbone: BackboneConfig) -> None:
        masking = config.patch_weight > 0
        levels = {"image": config.out_dim}
        if masking and config.patch_out_dim is not None:
            levels["patch"] = config.patch_out_dim
        super().__init__(
            config,
            backbone.model_copy(update={"mask_token": masking}),
            lambda dim: leveled_prototype_head(config, dim, levels),
        )
        self.masking = masking
        self.patch_level = "patch" if "patch" in levels else "image"
        self.teacher_patch_level = self.patch_level if config.teacher_prototypes == "as-student" else "image"
        if self.teacher_patch_level != self.patch_level:
            # As published: the teacher's one set of prototypes starts as the student's prototypes of patches.
            layers = self.teacher_head.network.last_layers
            layers["image"] = layers.pop("patch")
        self.center = Center(config.out_dim, config.center_momentum)
        self.patch_center = Center(levels[self.teacher_patch_level], config.patch_center_momentum)
        if config.cls_weight > 0:
            self.uniform_terms = {"cls": math.log(config.out_dim)}

    @property
    def views(self) -> tuple[ViewSpec, ...]:
        views = multi_crop_views(self.config, self.backbone)
        return views if self.config.cls_weight > 0 else views[:GLOBAL_VIEWS]  # only the class term uses small views

    def loss(self, batch: Batch, progress: Progress) -> Losses:
        return self.losses(batch, self.masks(batch, progress) if self.masking else [], progress)

    def masks(self, batch: Batch, progress: Progress) -> list[Bool[Tensor, "b n"]]:
        """m: for each large view, the patches masked for the student."""
        return draw_view_masks(self.config.mask, batch, progress, self.backbone, streams.Ibot.MASKS)

    def losses(self, batch: Batch, masks: list[Bool[Tensor, "b n"]], progress: Progress) -> Losses:
        """The loss terms, given the masks of the large views (none without the patch term)."""
        config = self.config
        views = [view.pixels for view in batch.views]
        keys = [fold_each(batch.keys, number) for number in range(len(views))]

        unmasked = len(views) - len(masks)
        needed: list[NeededPatches] = [*masks]
        needed += ["none"] * unmasked
        seen = encode_views(self.teacher_backbone, views[:GLOBAL_VIEWS], needed=self.taught_patches(masks))
        tokens = encode_views(
            self.backbone,
            views,
            masks=[*masks, *[None] * unmasked],
            drop_keys=keys,
            needed=needed,
        )

        terms: dict[str, Tensor] = {}
        metrics: dict[str, Tensor] = {}
        if config.cls_weight > 0:
            teacher = _logits(self.teacher_head.network, image_tokens(seen), "image").detach()
            targets = soft_targets(teacher, self.center.value, self.teacher_temp(progress))
            self.center.accumulate(teacher)
            student = _logits(self.head, image_tokens(tokens), "image")
            terms["cls"] = cross_view_loss(targets, student, config.student_temp)
            metrics |= prototype_entropies(terms["cls"], targets, student[:GLOBAL_VIEWS], config.student_temp)
            metrics["center_norm"] = self.center.value.norm()
        if self.masking:
            m = torch.cat(masks)
            targets = self.patch_targets(seen, m, self.teacher_patch_temp(progress))
            hidden = rows_at(torch.cat([view.patches for view in tokens[:GLOBAL_VIEWS]]), m)
            student = _logits(self.head, hidden, self.patch_level)
            terms["patch"] = masked_rows_mean(cross_entropy(targets, student, config.student_temp), m)
            metrics["masked_share"] = m.float().mean()
        return Losses(
            terms=terms,
            weights={"cls": config.cls_weight, "patch": config.patch_weight},
            metrics=metrics,
            embeddings=image_tokens(seen)[0],
        )

    def taught_patches(self, masks: list[Bool[Tensor, "b n"]]) -> Sequence[NeededPatches]:
        """For each large view, the patches that the teacher has to describe."""
        if not masks:
            return ["none"] * GLOBAL_VIEWS
        return masks if self.config.patch_center_of == "masked" else ["all"] * GLOBAL_VIEWS

    @torch.no_grad()
    def patch_targets(
        self, seen: list[Tokens], mask: Bool[Tensor, "b n"], temperature: float
    ) -> Float[Tensor, "rows k"]:
        """The teacher's targets for the masked patches; adds these, or all patches, to their centre.

        Logits are linear in the projections, so the mean logits of an image's patches are the logits of their mean
        projection: prototypes are compared with masked patches and one mean per image, not with every patch.
        """
        head, level = self.teacher_head.network, self.teacher_patch_level
        patches = torch.cat([view.patches for view in seen])
        if self.config.patch_center_of == "masked":
            logits = head.logits(head(rows_at(patches, mask)), level)
            self.patch_center.accumulate(logits)
        else:
            projected = head(patches)
            logits = head.logits(rows_at(projected, mask), level)
            self.patch_center.accumulate(head.logits(projected.mean(dim=1), level))
        return soft_targets(logits, self.patch_center.value, temperature)

    def teacher_patch_temp(self, progress: Progress) -> float:
        """Increases once per epoch, starting at the first epoch with masks."""
        config = self.config
        return ramp(
            max(0, progress.epoch - config.mask.start_epoch),
            config.warmup_teacher_temp_epochs,
            config.warmup_teacher_patch_temp,
            config.teacher_patch_temp,
        )

    def after_update(self, progress: Progress) -> None:
        super().after_update(progress)
        if self.config.cls_weight > 0:
            self.center.update()
        if self.masking:
            self.patch_center.update()


def _logits(head: LeveledPrototypeHead, tokens: Float[Tensor, "*rows d"], level: str) -> Float[Tensor, "*rows k"]:
    return head.logits(head(tokens), level)
