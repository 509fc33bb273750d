"""SOP: self-organizing visual prototypes (Silva et al., 2025), with SOVE (2025) and MaSSL (2024) as settings of it.

Student and teacher are compared, as in iBOT, by what they say over K prototypes, but nobody learns these: they are
drawn anew at every step from a memory of past embeddings. An anchor is a random row of the memory, its support
embeddings are the rows most similar to it, and together they vote for their region of the space. Randomness takes the
place of centring. Whole images are described by prototypes from one memory, hidden patches by those from another.

    E_C, E_p          images.memory, patches.memory: first in, first out; rows are unit vectors
    A, K              anchors, prototypes per task: `count`
    k, SEs            neighbours; with the anchor they are the members of a prototype
    D, Y              ops.prototypes.Prototypes: members and their contributions
    P(u) = σ(u Dᵀ) Y  log_probabilities, grouped_cross_entropy
    L_[CLS], L_patch  terms cls, patch; λ1, λ2: cls_weight, patch_weight
    m                 momentum of the teacher, from momentum to 1

A memory starts with random unit vectors. Until it is full, anchors and supports are drawn from these and from what has
been stored alike, so that there are always enough; the metric `memory_filled` says how far it is.

MaSSL is the case of one member per prototype and no patches; its tasks are the blocks of a permutation of the memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from asterism.config import Config
from asterism.methods._multi_crop import GLOBAL_VIEWS, MultiCropConfig, multi_crop_views
from asterism.methods._self_distillation import SelfDistillation, TeacherConfig
from asterism.methods.base import MethodConfig
from asterism.nn.backbone import BackboneConfig, build_backbone, encode_views
from asterism.nn.heads import ProjectionHead, image_tokens
from asterism.nn.memory import Memory
from asterism.nn.neighbour_lists import NeighbourLists
from asterism.ops.block_masks import MaskConfig, draw_masks
from asterism.ops.losses import entropy, masked_rows_mean
from asterism.ops.prototypes import (
    Contribution,
    Prototypes,
    grouped_cross_entropy,
    log_probabilities,
    nearest_rows,
    organize,
    permuted_blocks,
    supports_beside_anchors,
    supports_in_memory,
)
from asterism.ops.random import fold, fold_each, generator, uniform
from asterism.ops.schedules import ramp_per_step
from asterism.types import Batch, Losses, Progress, Tokens, ViewSpec

_MASKS, _STORED_PATCH = 0x50, 0x51  # tell draws from an image's key from each other
_IMAGE_ANCHORS, _PATCH_ANCHORS = 0x52, 0x53  # the same for draws from a step's key


class PrototypesConfig(Config):
    """How prototypes of images are made; section 2.2 and appendix A."""

    memory: int = Field(default=65536, gt=1)  # rows N_C (table C.5)
    count: int = Field(default=4096, gt=1)  # prototypes K of a task (table 10)
    neighbours: int = Field(default=8, ge=0)  # support embeddings k per anchor (table 8)
    tasks: int | None = Field(default=None, ge=1)  # draws of prototypes per step (table C.1); None: 4, or all blocks
    anchors: Literal["random", "partition", "fixed", "fixed-places"] = "random"
    # random: new rows at every step; partition: blocks of a random order of the whole memory (MaSSL); fixed: vectors
    # drawn once for all (collapses, table C.7); fixed-places: the same rows of the memory, whatever they hold
    search: Literal["beside-anchors", "whole-memory"] = "beside-anchors"
    # beside-anchors: k rows that are no anchors, and the anchor; whole-memory: k rows, the anchor first among them
    contribution: Contribution = "similarity"  # what a support's vote counts (table 9)
    smoothing: float = Field(default=0.1, ge=0, lt=1)  # share of the anchor's vote that goes to other prototypes
    neighbour_lists: int | Literal["auto"] | None = "auto"
    # entries per row of a list that is kept up to date, at least `neighbours`; auto: four times as many, 32 or more;
    # None: search at every task. The prototypes are the same

    default_tasks: ClassVar[int] = 4

    @property
    def task_count(self) -> int:
        if self.anchors == "partition":
            return self.memory // self.count
        return self.tasks or self.default_tasks

    @property
    def list_length(self) -> int | None:
        return max(32, 4 * self.neighbours) if self.neighbour_lists == "auto" else self.neighbour_lists

    @model_validator(mode="after")
    def _memory_suffices(self) -> PrototypesConfig:
        if self.memory < self.count + self.neighbours:
            raise ValueError(
                f"a memory of {self.memory} rows is smaller than {self.count} anchors + {self.neighbours} neighbours; "
                f"raise memory to at least {self.count + self.neighbours}, or lower count"
            )
        return self

    @model_validator(mode="after")
    def _settings_agree(self) -> PrototypesConfig:
        if self.anchors == "partition" and (self.neighbours or self.tasks):
            raise ValueError(
                "anchors: partition makes every row a prototype of its own, once; set neighbours: 0 and leave out tasks"
            )
        if self.search == "whole-memory" and self.neighbours == 0:
            raise ValueError("search: whole-memory counts the anchor among the neighbours; set neighbours to 1 or more")
        if self.list_length is not None and self.list_length < max(1, self.neighbours):
            raise ValueError(
                f"neighbour_lists of {self.neighbour_lists} entries cannot hold {self.neighbours} neighbours; "
                f"use auto, or null to search at every task"
            )
        return self


class PatchPrototypesConfig(PrototypesConfig):
    """How prototypes of patches are made; section 2.3."""

    memory: int = Field(default=8192, gt=1)  # rows N_p (table C.6)
    count: int = Field(default=512, gt=1)  # table C.3
    neighbours: int = Field(default=0, ge=0)  # table 8: more do not help patches

    default_tasks: ClassVar[int] = 1


class SopConfig(MultiCropConfig, TeacherConfig):
    """Settings of SOP; the defaults are those of a ViT-S/16. Temperatures divide similarities."""

    name: Literal["sop"] = "sop"

    # Tasks (table 7: either may be left out)
    images: PrototypesConfig | None = PrototypesConfig()
    patches: PatchPrototypesConfig | None = PatchPrototypesConfig()
    cls_weight: float = Field(default=1.0, ge=0)  # λ1
    patch_weight: float = Field(default=1.0, ge=0)  # λ2
    mask: MaskConfig = MaskConfig()  # of the student's large views, if there is a patch task (appendix C.3)
    global_token: Literal["cls", "mean-patch"] = "cls"  # what stands for an image (table C.2)

    # Projection (appendix A)
    hidden_dim: int = Field(default=2048, gt=0)
    embedding_dim: int = Field(default=256, gt=0)  # d

    momentum: float = Field(default=0.994, ge=0, le=1)  # m at the start; a cosine takes it to 1 (table C.4)

    @model_validator(mode="after")
    def _something_to_learn(self) -> SopConfig:
        if self.images is None and self.patches is None:
            raise ValueError("images and patches are both null; keep at least one of the tasks")
        for name, weight, task in (
            ("cls_weight", self.cls_weight, "images"),
            ("patch_weight", self.patch_weight, "patches"),
        ):
            if weight == 0:
                raise ValueError(f"{name} = 0 would compute a loss in vain; set {task}: null to leave the task out")
        return self


class Sop(SelfDistillation[SopConfig, ProjectionHead]):
    """Student and teacher with one projection for images and patches, and the memories that make prototypes."""

    Config: ClassVar[type[MethodConfig]] = SopConfig

    def __init__(self, config: SopConfig, backbone: BackboneConfig) -> None:
        changes: dict[str, bool] = {"mask_token": config.patches is not None}
        if config.global_token == "mean-patch":  # no loss would reach a class token, and people would read it
            changes["class_token"] = False
        network = build_backbone(backbone.model_copy(update=changes))
        head = ProjectionHead(network.dim, config.hidden_dim, config.embedding_dim, epsilon=1e-6)
        super().__init__(config, network, head)
        self.images = None if config.images is None else Organizer(config.images, config.embedding_dim)
        self.patches = None if config.patches is None else Organizer(config.patches, config.embedding_dim)
        self.view_specs = multi_crop_views(config, self.backbone)
        if config.images is not None:
            self.uniform_terms = {"cls": math.log(config.images.count)}
        else:
            self.view_specs = self.view_specs[:GLOBAL_VIEWS]  # small views tell of whole images alone

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

        terms: dict[str, Tensor] = {}
        metrics: dict[str, Tensor] = {}
        if self.images is not None:
            teacher = self.teacher_head(image_tokens(seen))
            student = self.head(image_tokens(tokens))
            tasks = self.images.tasks(progress, _IMAGE_ANCHORS)
            terms["cls"], entropies = image_loss(teacher, student, tasks, self.temperatures(progress))
            metrics |= entropies | {"kl": terms["cls"].detach() - entropies["target_entropy"]}
            metrics["memory_filled"] = self.images.memory.filled_share
            self.images.memory.collect(teacher[-1], batch.keys)
        if self.patches is not None:
            mask = torch.cat([m for m in masks if m is not None])
            whole, hidden = (torch.cat([view.patches for view in t[:GLOBAL_VIEWS]])[mask] for t in (seen, tokens))
            tasks = self.patches.tasks(progress, _PATCH_ANCHORS)
            terms["patch"] = patch_loss(
                self.teacher_head(whole), self.head(hidden), mask, tasks, self.temperatures(progress)
            )
            metrics["masked_share"] = mask.float().mean()
            self.patches.memory.collect(self.teacher_head(one_patch(seen[-1], batch.keys)), batch.keys)
        return Losses(
            terms=terms,
            weights={"cls": config.cls_weight, "patch": config.patch_weight},
            metrics=metrics,
            embeddings=image_tokens(seen)[0],
        )

    def masks(self, batch: Batch) -> list[Bool[Tensor, "b n"] | None]:
        """For each large view the patches that the student does not see."""
        if self.patches is None:
            return [None] * GLOBAL_VIEWS
        return [
            draw_masks(self.config.mask, fold_each(batch.keys, _MASKS, number), self.backbone.grid_of(view.pixels))
            for number, view in enumerate(batch.views[:GLOBAL_VIEWS])
        ]

    def temperatures(self, progress: Progress) -> tuple[float, float]:
        """Of teacher and student."""
        return self.teacher_temp(progress), self.config.student_temp

    def teacher_temp(self, progress: Progress) -> float:
        """Rises in a straight line, step by step."""
        config = self.config
        return ramp_per_step(
            progress, config.warmup_teacher_temp_epochs, config.warmup_teacher_temp, config.teacher_temp
        )

    def after_update(self, progress: Progress) -> None:
        super().after_update(progress)
        for organizer in (self.images, self.patches):
            if organizer is not None:
                organizer.remember()


class Organizer(nn.Module):
    """A memory, and the prototypes that are drawn from it."""

    fixed: Float[Tensor, "t k d"] | None

    def __init__(self, config: PrototypesConfig, dim: int) -> None:
        super().__init__()
        self.config = config
        self.memory = Memory(config.memory, dim)
        moving = config.neighbours > 0 and config.anchors in ("random", "fixed-places")
        self.lists = NeighbourLists(config.memory, config.list_length) if moving and config.list_length else None
        self.register_buffer("fixed", self._drawn_once() if config.anchors == "fixed" else None)

    @torch.no_grad()
    def tasks(self, progress: Progress, use: int) -> Iterator[Prototypes]:
        """The prototypes of each task of a step: the same in every process and for every micro-batch."""
        config, step = self.config, progress.step if self.config.anchors != "fixed-places" else -1
        if config.anchors == "partition":
            order = self.memory.sample(config.memory, generator(fold(progress.seed, use, step)))
            yield from permuted_blocks(self.memory.rows, order, config.count)
            return
        for task in range(config.task_count):
            rows = self.memory.rows
            if self.fixed is None:
                anchors = self.memory.sample(config.count, generator(fold(progress.seed, use, step, task)))
            else:
                anchors = torch.arange(config.count, device=rows.device) + len(rows)
                rows = torch.cat([rows, self.fixed[task]])
            yield self._organize(rows, anchors)

    def _organize(self, rows: Float[Tensor, "n d"], anchors: Int[Tensor, " k"]) -> Prototypes:
        config = self.config
        find = supports_beside_anchors if config.search == "beside-anchors" else supports_in_memory
        supports = find(rows, anchors, config.neighbours, self.lists or nearest_rows)
        return organize(rows, supports, config.contribution, config.smoothing)

    def _drawn_once(self) -> Float[Tensor, "t k d"]:
        """Anchors of every task, spread as the memory is at the start, but not in it: no row is its own neighbour."""
        config = self.config
        return F.normalize(torch.randn(config.task_count, config.count, self.memory.rows.shape[1]), dim=-1)

    def remember(self) -> None:
        """Store what was collected during the step."""
        places = self.memory.store()
        if self.lists is not None:
            self.lists.follow(self.memory.rows, places)


def image_loss(
    teacher: Float[Tensor, "t b d"],
    student: Float[Tensor, "v b d"],
    tasks: Iterator[Prototypes],
    temperatures: tuple[float, float],
) -> tuple[Float[Tensor, ""], dict[str, Float[Tensor, ""]]]:
    """Equation 2: mean cross-entropy over tasks, images and pairs of a teacher's view and another student's view.

    The targets of a student's view are added up first, so it meets the prototypes once per task: v passes instead of
    t(v − 1). Beside the loss: the entropies of targets and (of the first task's) predictions for large views.
    """
    (t, b, _), v = teacher.shape, len(student)
    losses: list[Tensor] = []
    target_entropies: list[Tensor] = []
    prediction_entropies: list[Tensor] = []
    for prototypes in tasks:
        targets = log_probabilities(teacher.flatten(0, 1), prototypes, temperatures[0]).exp().view(t, b, -1)
        goals = targets.sum(dim=0).repeat(v, 1, 1)
        goals[:t] -= targets  # never the same view
        crossed = grouped_cross_entropy(student.flatten(0, 1), goals.flatten(0, 1), prototypes, temperatures[1])
        losses.append(crossed.sum() / (b * t * (v - 1)))
        target_entropies.append(entropy(targets))
        if not prediction_entropies:
            large = student[:t].detach().flatten(0, 1)
            prediction_entropies.append(entropy(log_probabilities(large, prototypes, temperatures[1]).exp()))
    return torch.stack(losses).mean(), {
        "target_entropy": torch.stack(target_entropies).mean(),
        "prediction_entropy": prediction_entropies[0],
    }


def patch_loss(
    teacher: Float[Tensor, "r d"],
    student: Float[Tensor, "r d"],
    mask: Bool[Tensor, "b n"],
    tasks: Iterator[Prototypes],
    temperatures: tuple[float, float],
) -> Float[Tensor, ""]:
    """Equation 4, for the r hidden patches only: mean over the hidden patches of a view, then over views and tasks."""
    losses = []
    for prototypes in tasks:
        targets = log_probabilities(teacher, prototypes, temperatures[0]).exp()
        crossed = grouped_cross_entropy(student, targets, prototypes, temperatures[1])
        losses.append(masked_rows_mean(crossed, mask))
    return torch.stack(losses).mean()


def one_patch(tokens: Tokens, keys: Int[Tensor, " b"]) -> Float[Tensor, "b d"]:
    """One patch of every image, uniformly drawn."""
    patches = tokens.patches.shape[1]
    place = (uniform(fold_each(keys, _STORED_PATCH), 1)[:, 0] * patches).long()
    return tokens.patches[torch.arange(len(keys), device=keys.device), place]
