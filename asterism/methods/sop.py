"""SOP: self-organizing visual prototypes (Silva et al., 2025), with SOVE (2025) and MaSSL (2024) as settings of it.

As in iBOT, the student predicts the teacher's distribution over K prototypes, but the prototypes are not learned: every
step draws them from a memory of past embeddings. An anchor is a random row of the memory, its support embeddings (SOVE:
judges) are the rows most similar to it, and together they vote for their region of the space. Randomness replaces
centring. Images and masked patches each have their own memory and prototypes.

    E_C, E_p          images.memory, patches.memory: first in, first out; rows are unit vectors
    A, K              anchors, their number per task: `count`
    k, SEs            neighbours; with the anchor they are the members of a prototype
    z, u              tokens of the backbone, their projections by the head: unit vectors
    D, Y              ops.prototypes.Prototypes: members and their contributions
    P(u) = σ(u Dᵀ) Y  ops.prototypes.log_probabilities, grouped_cross_entropy
    L_[CLS], L_patch  terms cls, patch; λ1, λ2: cls_weight, patch_weight
    m                 momentum of the teacher, from momentum to 1

A memory starts with random unit vectors. Until it is full, anchors and supports are drawn from these and from stored
rows, so there are always enough; the metric `memory_filled` is the share of stored rows.

MaSSL is the case of one member per prototype and no patches; its tasks are the blocks of a permutation of the memory.
Its KoLeo term, which its published runs leave out, spreads the images of a micro-batch: unlike the other terms it
depends on how a batch is divided.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from pydantic import model_validator
from torch import Tensor

from asterism.errors import UserError
from asterism.methods.base import MethodConfig
from asterism.methods.parts.self_distillation import SelfDistillation, TeacherConfig
from asterism.methods.parts.views import GLOBAL_VIEWS, MultiCropConfig, draw_view_masks, multi_crop_views
from asterism.nn.backbone import BackboneConfig, encode_views
from asterism.nn.heads import ProjectionHead, image_tokens
from asterism.nn.needed_outputs import NeededPatches
from asterism.nn.prototype_memory import Anchors, PatchPrototypesConfig, PrototypeMemory, PrototypesConfig
from asterism.ops import streams
from asterism.ops.block_masks import MaskConfig
from asterism.ops.host import sent
from asterism.ops.koleo import koleo
from asterism.ops.losses import entropy, masked_rows_mean
from asterism.ops.masking import rows_at
from asterism.ops.prototypes import Prototypes, grouped_cross_entropy, log_probabilities
from asterism.ops.random import fold_each, uniform
from asterism.ops.schedules import ramp_per_step
from asterism.ranges import Count, NonNegative, Positive, Share
from asterism.types import Batch, Losses, Progress, Tokens, ViewSpec


class SopConfig(MultiCropConfig, TeacherConfig):
    """Settings of SOP; the defaults are those of a ViT-S/16. Temperatures divide similarities."""

    name: Literal["sop"] = "sop"

    # Tasks (table 7: either may be left out)
    images: PrototypesConfig | None = PrototypesConfig()
    patches: PatchPrototypesConfig | None = PatchPrototypesConfig()
    cls_weight: NonNegative = 1.0  # λ1
    patch_weight: NonNegative = 1.0  # λ2
    koleo_weight: Positive | None = None  # of MaSSL's optional term; None: off
    mask: MaskConfig = MaskConfig()  # of the student's large views, if there is a patch task (appendix C.3)
    global_token: Literal["cls", "mean-patch"] = "cls"  # what represents an image (table C.2)

    # Projection (appendix A)
    hidden_dim: Count = 2048
    embedding_dim: Count = 256  # d

    momentum: Share = 0.994  # m at the start; a cosine takes it to 1 (table C.4)

    @model_validator(mode="after")
    def _something_to_learn(self) -> SopConfig:
        if self.images is None and self.patches is None:
            raise ValueError("images and patches are both null; keep at least one of the tasks")
        if self.images is None and self.koleo_weight is not None:
            raise ValueError("koleo_weight spreads embeddings of images, but images is null; leave it out")
        for name, weight, task in (
            ("cls_weight", self.cls_weight, "images"),
            ("patch_weight", self.patch_weight, "patches"),
        ):
            if weight == 0:
                raise ValueError(f"{name} = 0 would compute and discard a loss; set {task}: null to leave the task out")
        return self


@dataclass(frozen=True)
class Draws:
    """All random draws of a step, given the views."""

    masks: Sequence[Bool[Tensor, "b n"]]  # of the student's large views; none without a patch task
    images: Sequence[Anchors]
    patches: Sequence[Anchors]
    stored_patch: Int[Tensor, " b"]  # the patch of the second view that goes to E_p


class Sop(SelfDistillation[SopConfig, ProjectionHead]):
    """Student and teacher with one projection for images and patches, and the memories that provide prototypes."""

    Config: ClassVar[type[MethodConfig]] = SopConfig

    def __init__(self, config: SopConfig, backbone: BackboneConfig) -> None:
        changes: dict[str, bool] = {"mask_token": config.patches is not None}
        if config.global_token == "mean-patch":  # no loss would train a class token, yet users would read it
            changes["class_token"] = False
        super().__init__(
            config,
            backbone.model_copy(update=changes),
            lambda dim: ProjectionHead(dim, config.hidden_dim, config.embedding_dim, epsilon=1e-6),
        )
        self.images = None if config.images is None else PrototypeMemory(config.images, config.embedding_dim)
        self.patches = None if config.patches is None else PrototypeMemory(config.patches, config.embedding_dim)
        if config.images is not None:
            self.uniform_terms = {"cls": math.log(config.images.prototypes)}

    @property
    def views(self) -> tuple[ViewSpec, ...]:
        views = multi_crop_views(self.config, self.backbone)
        return views if self.images is not None else views[:GLOBAL_VIEWS]  # only the class term uses small views

    def loss(self, batch: Batch, progress: Progress) -> Losses:
        return self.losses(batch, self.draw(batch, progress), progress)

    def draw(self, batch: Batch, progress: Progress) -> Draws:
        """Draw masks and the stored patch per image, and anchors per step."""
        cells = math.prod(self.backbone.grid_of(batch.views[GLOBAL_VIEWS - 1].pixels))
        masks: Sequence[Tensor] = ()
        if self.patches is not None:
            masks = draw_view_masks(self.config.mask, batch, progress, self.backbone, streams.Sop.MASKS)
        return Draws(
            masks=masks,
            images=() if self.images is None else self.images.draw(progress, streams.SopAnchors.IMAGES),
            patches=() if self.patches is None else self.patches.draw(progress, streams.SopAnchors.PATCHES),
            stored_patch=(uniform(fold_each(batch.keys, streams.Sop.STORED_PATCH), 1)[:, 0] * cells).long(),
        )

    def losses(self, batch: Batch, draws: Draws, progress: Progress) -> Losses:
        """The loss terms, given the draws."""
        config, tau = self.config, Temperatures(self.teacher_temp(progress), self.config.student_temp)
        views = [view.pixels for view in batch.views]
        keys = [fold_each(batch.keys, number) for number in range(len(views))]
        unmasked = len(views) - len(draws.masks)
        needed: list[NeededPatches] = [*draws.masks]
        needed += ["none"] * unmasked

        z_t = encode_views(self.teacher_backbone, views[:GLOBAL_VIEWS], needed=self.taught_patches(draws))
        z_s = encode_views(
            self.backbone,
            views,
            masks=[*draws.masks, *[None] * unmasked],
            drop_keys=keys,
            needed=needed,
        )

        terms: dict[str, Tensor] = {}
        metrics: dict[str, Tensor] = {}
        if self.images is not None:
            u_t, u_s = self.teacher_head(image_tokens(z_t)), self.head(image_tokens(z_s))
            terms["cls"], entropies = image_loss(u_t, u_s, self.images.prototypes(draws.images), tau)
            metrics |= entropies | {"kl": terms["cls"].detach() - entropies["target_entropy"]}
            metrics["memory_filled"] = self.images.memory.filled_share
            self.images.memory.collect(u_t[-1], batch.keys)
            if config.koleo_weight is not None:
                terms["koleo"] = spread(u_s[:GLOBAL_VIEWS])
        if self.patches is not None:
            mask = torch.cat(list(draws.masks))
            u_t, u_s = self.teacher_head(patches_at(z_t, mask)), self.head(patches_at(z_s[:GLOBAL_VIEWS], mask))
            terms["patch"] = patch_loss(u_t, u_s, mask, self.patches.prototypes(draws.patches), tau)
            metrics["masked_share"] = mask.float().mean()
            last, place = z_t[-1].patches, sent(draws.stored_patch, u_t.device)
            stored = last[torch.arange(len(last), device=last.device), place]
            self.patches.memory.collect(self.teacher_head(stored), batch.keys)
        return Losses(
            terms=terms,
            weights={"cls": config.cls_weight, "patch": config.patch_weight, "koleo": config.koleo_weight or 0.0},
            metrics=metrics,
            embeddings=image_tokens(z_t)[0],
        )

    def taught_patches(self, draws: Draws) -> Sequence[NeededPatches]:
        """For each large view, the patches that the teacher has to describe: masked ones, and those to be stored."""
        if not draws.masks:
            return ["none"] * GLOBAL_VIEWS
        *first, last = draws.masks
        return [*first, last.scatter(1, draws.stored_patch[:, None], True)]

    def teacher_temp(self, progress: Progress) -> float:
        """Increases linearly with every step."""
        config = self.config
        return ramp_per_step(
            progress, config.warmup_teacher_temp_epochs, config.warmup_teacher_temp, config.teacher_temp
        )

    def after_update(self, progress: Progress) -> None:
        super().after_update(progress)
        for organizer in (self.images, self.patches):
            if organizer is not None:
                organizer.remember()


@dataclass(frozen=True)
class Temperatures:
    """τ of both networks: similarities are divided by them."""

    teacher: float
    student: float


def image_loss(
    u_t: Float[Tensor, "t b d"], u_s: Float[Tensor, "v b d"], tasks: Iterator[Prototypes], tau: Temperatures
) -> tuple[Float[Tensor, ""], dict[str, Float[Tensor, ""]]]:
    """Equation 2: mean of −P(u_t)ᵀ log P(u_s) over tasks, images and pairs of a teacher view and another view.

    The cross-entropy is linear in its target, so the targets of a student view are summed first: it is compared with
    the prototypes once per task, v passes instead of t(v − 1). Also returns the entropies of targets and (of the first
    task's) predictions for large views.
    """
    (t, b, _), v = u_t.shape, len(u_s)
    losses: list[Tensor] = []
    target_entropies: list[Tensor] = []
    prediction_entropies: list[Tensor] = []
    for DY in tasks:
        p_t = log_probabilities(u_t.flatten(0, 1), DY, tau.teacher).exp().view(t, b, -1)
        own_view = torch.cat([p_t, p_t.new_zeros(v - t, *p_t.shape[1:])])
        targets = p_t.sum(dim=0) - own_view  # for each student view, those of the other views
        crossed = grouped_cross_entropy(u_s.flatten(0, 1), targets.flatten(0, 1), DY, tau.student)
        losses.append(crossed.sum() / (b * t * (v - 1)))
        target_entropies.append(entropy(p_t))
        if not prediction_entropies:
            p_s = log_probabilities(u_s[:t].detach().flatten(0, 1), DY, tau.student).exp()
            prediction_entropies.append(entropy(p_s))
    return torch.stack(losses).mean(), {
        "target_entropy": torch.stack(target_entropies).mean(),
        "prediction_entropy": prediction_entropies[0],
    }


def patch_loss(
    u_t: Float[Tensor, "r d"],
    u_s: Float[Tensor, "r d"],
    mask: Bool[Tensor, "b n"],
    tasks: Iterator[Prototypes],
    tau: Temperatures,
) -> Float[Tensor, ""]:
    """Equation 4, for the r masked patches only: mean over the masked patches of a view, then over views and tasks."""
    losses = []
    for DY in tasks:
        p_t = log_probabilities(u_t, DY, tau.teacher).exp()
        losses.append(masked_rows_mean(grouped_cross_entropy(u_s, p_t, DY, tau.student), mask))
    return torch.stack(losses).mean()


def patches_at(views: Sequence[Tokens], mask: Bool[Tensor, "b n"]) -> Float[Tensor, "r d"]:
    """The patches of all views where the mask is true, concatenated view by view."""
    return rows_at(torch.cat([view.patches for view in views]), mask)


def spread(u: Float[Tensor, "t b d"]) -> Float[Tensor, ""]:
    """KoLeo among the images of each view, mean over views."""
    if u.shape[1] < 2:
        raise UserError(
            "method.koleo_weight spreads the images of a micro-batch, which has only one; give it two or more"
        )
    return koleo(u, unit_of_length=1.0)
