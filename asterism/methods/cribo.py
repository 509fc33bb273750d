"""CrIBo: cross-image object-level bootstrapping (Lebailly, Stegmüller et al., 2024).

The teacher's tokens of two views of an image are clustered jointly, so an object (the mean token of a cluster) has a
counterpart in the other view. The student predicts, over prototypes, the teacher's output for the other view: of the
image, of each object, and of the object's nearest neighbour in a bank of the teacher's objects from *other* images. A
neighbour is used as a target only if it leads back, through the other view, to the object itself.

    f_s, f_t           backbone, teacher_backbone
    h, h̄               head: one projection; prototypes W for objects and others for images
    z_1, z_2; z̄_1, z̄_2 patch tokens and class token of the two views
    Q*, K, λ_pos       cluster of every token; objects.clusters, objects.position_weight        (eq. 12–17)
    c_1^k, c_2^k       objects: the mean token of cluster k in each view                        (eq. 1)
    M_1, M_2, S        bank: objects of the newest images in each view; bank.images
    nn, jump, O, B     bank.nearest, ops.cycle_consistency; object_batch                                    (eq. 2–4)
    p, p̃, p̄            softmax over prototypes, of objects, neighbours and images               (eq. 5, 7, 9)
    L_cv^o, L_ci^o, L_cv^g   the terms objects, neighbours and image                            (eq. 6, 8, 10)
    Z_1, Z_2           number of objects of each view with an accepted neighbour

Where paper and published code differ, this follows the code: every term is half as large; targets are centred; the
marginals of the clusters are estimated from the last round instead of uniform (objects.marginals); the neighbour term
is off in epoch 0 (neighbour_start); cycles close, and objects are counted, within each process's own batch instead of
the batch of all processes (object_batch: each micro-batch counts as a process's batch).
Where this differs from the published code, a setting restores the code's behaviour, and the recipes of the published
runs use it: costs are scaled per image instead of per batch (objects.cost_range); each direction of the neighbour term
is divided by its own count as in equation 8, not both by Z_1 (neighbour_counts); an image never finds its own objects
of an earlier epoch (bank.own_image); the bank is in half precision (bank.precision).
Differs from the published code without a setting: the bank starts empty instead of filled with random rows, which makes
no difference after an epoch of at least S images; and there is no bank of class tokens, which the code fills but never
reads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from pydantic import model_validator
from torch import Tensor

from asterism.methods.base import MethodConfig
from asterism.methods.parts.labelled_objects import labelled_objects, object_meanings
from asterism.methods.parts.object_pictures import corner_views, draw_objects
from asterism.methods.parts.self_distillation import (
    PrototypeDistillation,
    PrototypeHeadConfig,
    leveled_prototype_head,
    prototype_entropies,
)
from asterism.methods.parts.views import ColorsConfig, check_view_size
from asterism.nn.backbone import BackboneConfig, encode_views
from asterism.nn.center import Center
from asterism.nn.heads import LeveledPrototypeHead, image_tokens
from asterism.nn.object_bank import BankConfig, ObjectBank, StoredObjects
from asterism.ops import streams
from asterism.ops.clustering import ClusteringConfig, cluster, draw_seeds, mean_tokens, present_in_all
from asterism.ops.cycle_consistency import closes_cycle
from asterism.ops.geometry import patch_centers
from asterism.ops.host import present, sent
from asterism.ops.losses import cross_view_loss, soft_targets
from asterism.ops.normalise import denormalise, normalise
from asterism.ops.object_losses import Counts, ObjectBatch, ObjectSoftmax, gather_objects, neighbour_loss, object_loss
from asterism.ops.random import fold, fold_each
from asterism.ops.schedules import ramp_per_epoch
from asterism.ranges import (
    AreaRange,
    CountFromTwo,
    CountFromZero,
    NonNegative,
    Pixels,
    Share,
    ShareBelowOne,
    Temperature,
)
from asterism.types import Batch, Losses, Progress, Tokens, View, ViewSpec

Named = dict[str, Float[Tensor, ""]]


class CriboConfig(ColorsConfig, PrototypeHeadConfig):
    """Settings of CrIBo; the defaults suit a ViT-S/16 on ImageNet. Temperatures divide logits; sizes are in pixels."""

    name: Literal["cribo"] = "cribo"

    # Views (section 4, as DINO's without small crops)
    view_size: Pixels | None = None  # None: the backbone's image size
    scale: AreaRange = (0.25, 1.0)  # share of the image's area
    solarize: Share = 0.2  # probability, of the second view

    # Objects (section 3.2.1) and their neighbours (section 3.2.2)
    objects: ClusteringConfig = ClusteringConfig()
    bank: BankConfig = BankConfig()
    criterion: Literal["cycle", "none", "segments"] = "cycle"
    # accepted neighbours: those that close a cycle, all (table 8), or those with the same labels (table 11)
    object_batch: ObjectBatch = "process"
    # the batch within which cycles close and objects are averaged: each process's (micro-)batch, as published, or that
    # of all processes: with objects.cost_range = image, the same result for any number of processes

    # Terms (section 3.2.3; table 5 leaves some out); the paper adds them unweighted
    image_weight: NonNegative = 1.0
    object_weight: NonNegative = 1.0
    neighbour_weight: NonNegative = 1.0
    neighbour_start: CountFromZero = 1  # first epoch that uses neighbours: initially they are random
    neighbour_counts: Counts = "own"  # divide by Z_1 and Z_2 (eq. 8), or first: both by Z_1, as published

    # Levels of the head: prototypes, centres and temperatures
    out_dim: CountFromTwo = 65536  # prototypes of images
    object_out_dim: CountFromTwo = 65536  # prototypes of objects
    center_momentum: ShareBelowOne = 0.9
    object_center_momentum: ShareBelowOne = 0.9
    object_student_temp: Temperature | None = None  # None: student_temp; likewise the other two
    object_warmup_teacher_temp: Temperature | None = None
    object_teacher_temp: Temperature | None = None

    @model_validator(mode="after")
    def _something_to_learn(self) -> CriboConfig:
        if self.image_weight == self.object_weight == self.neighbour_weight == 0:
            raise ValueError(
                "image_weight, object_weight and neighbour_weight are all 0; give at least one a positive weight"
            )
        return self

    @property
    def uses_objects(self) -> bool:
        return self.object_weight > 0 or self.neighbour_weight > 0

    @property
    def term_weights(self) -> dict[str, float]:
        return {"image": self.image_weight, "objects": self.object_weight, "neighbours": self.neighbour_weight}

    @property
    def needs_whole_batch(self) -> str | None:
        if self.uses_objects and self.object_batch == "all":
            return "method.object_batch = all matches objects over the whole batch (process: within each part of it)"
        return None


@dataclass(frozen=True)
class Objects:
    """c: the objects present in both views of an image, concatenated over all images of this process.

    On a device, these are all slots of all images (`asterism.ops.host.present`), and `valid` says which are objects.
    """

    teacher: Float[Tensor, "2 m d"]
    student: Float[Tensor, "2 m d"]
    image: Int[Tensor, " m"]  # index in its source of the image that each belongs to
    meaning: Int[Tensor, " m"]  # from the labels of its patches, if labels decide which neighbours are accepted
    valid: Bool[Tensor, " m"]


class Cribo(PrototypeDistillation[CriboConfig, LeveledPrototypeHead]):
    """Student and teacher with one projection for images and objects, two centres, and the bank of objects."""

    Config: ClassVar[type[MethodConfig]] = CriboConfig
    shows: ClassVar[str] = (
        "The objects found in two overlapping crops, each in one colour (dark: in one crop only); then one object of "
        "the first crop, and the nearest object in another image."
    )

    def __init__(self, config: CriboConfig, backbone: BackboneConfig) -> None:
        levels = {"image": config.out_dim} if config.image_weight else {}
        levels |= {"objects": config.object_out_dim} if config.uses_objects else {}
        super().__init__(config, backbone, lambda dim: leveled_prototype_head(config, dim, levels))
        check_view_size("view_size", self.view_size, self.backbone.patch_size)
        if config.uses_objects:
            config.objects.check_tokens(2 * (self.view_size // self.backbone.patch_size) ** 2)
        self.center = Center(config.out_dim, config.center_momentum)
        self.object_center = Center(config.object_out_dim, config.object_center_momentum)
        slots, dim = config.objects.clusters, self.backbone.dim
        self.bank = ObjectBank(config.bank, slots, dim) if config.neighbour_weight else None
        self.uniform_terms = {level: math.log(size) for level, size in levels.items() if config.term_weights[level]}

    @property
    def view_size(self) -> int:
        return self.config.view_size or self.backbone.image_size

    @property
    def views(self) -> tuple[ViewSpec, ...]:
        config = self.config
        oracle = config.uses_objects and "segments" in (config.objects.algorithm, config.criterion)
        common = config.colored(ViewSpec(size=self.view_size, scale=config.scale, segments=oracle))
        return (
            common.model_copy(update={"blur": 1.0}),
            common.model_copy(update={"blur": 0.1, "solarize": config.solarize}),
        )

    def loss(self, batch: Batch, progress: Progress) -> Losses:
        config, images = self.config, len(batch.index)
        z_t, z_s = self.encode(batch)
        terms: Named = {}
        metrics: Named = {}
        if config.image_weight:
            terms["image"], metrics = self.global_loss(z_t, z_s, progress)  # L_cv^g (eq. 9, 10)
        if config.uses_objects:
            Q = self.find_objects(batch, z_t, progress)  # eq. 12–17
            c = self.collect_objects(batch, z_t, z_s, Q)  # eq. 1
            h_s, h_t = self.project(c)
            p = self.object_softmax(progress)  # eq. 5, 7
            self.object_center.accumulate_projections(h_t, self.teacher_head.network.last_layers["objects"], c.valid)
            metrics["objects_per_image"] = c.valid.sum() / images
            metrics["object_center_norm"] = self.object_center.value.norm()
            if config.object_weight:
                found = object_loss(p, h_s, h_t, config.object_batch, c.valid)  # L_cv^o (eq. 6)
                terms["objects"] = found.cross_entropy
                metrics["object_target_entropy"] = found.target_entropy
                metrics["object_prediction_entropy"] = found.prediction_entropy
            if self.bank is not None:
                nn, accepted = self.find_neighbours(self.bank, c)  # eq. 2–4
                metrics["bootstrapping_ratio"] = accepted.sum() / (2 * config.objects.clusters * images)
                metrics["bank_filled"] = self.bank.filled_share
                teaches = accepted & (progress.epoch >= config.neighbour_start)
                h_nn = self.project_neighbours(self.bank, nn, teaches)
                scope = config.object_batch, config.neighbour_counts
                terms["neighbours"] = neighbour_loss(p, h_s, h_nn, teaches, *scope)  # L_ci^o (eq. 8)
        return Losses(terms, config.term_weights, metrics, embeddings=image_tokens(z_t)[0])  # eq. 11

    def encode(self, batch: Batch) -> tuple[list[Tokens], list[Tokens]]:
        """Tokens of the two views by teacher and student."""
        pixels = [view.pixels for view in batch.views]
        keys = [fold_each(batch.keys, number) for number in range(len(pixels))]
        return encode_views(self.teacher_backbone, pixels), encode_views(self.backbone, pixels, drop_keys=keys)

    def global_loss(self, z_t: list[Tokens], z_s: list[Tokens], progress: Progress) -> tuple[Float[Tensor, ""], Named]:
        """L_cv^g: the class token of each view predicts the teacher's of the other one."""
        τ_s, head_t = self.config.student_temp, self.teacher_head.network
        with torch.no_grad():
            logits_t = head_t.logits(head_t(image_tokens(z_t)), "image")
        p_t = soft_targets(logits_t, self.center.value, self.teacher_temp(progress))
        self.center.accumulate(logits_t)
        logits_s = self.head.logits(self.head(image_tokens(z_s)), "image")
        loss = cross_view_loss(p_t, logits_s, τ_s)
        return loss, prototype_entropies(loss, p_t, logits_s, τ_s) | {"center_norm": self.center.value.norm()}

    @torch.no_grad()
    def find_objects(self, batch: Batch, z_t: list[Tokens], progress: Progress) -> Int[Tensor, "2 b n"]:
        """Q*: the cluster of every token, the same number for the same object in both views."""
        config = self.config.objects.at(progress)
        if config.algorithm == "segments":
            return labelled_objects(batch.views, z_t, config.clusters)
        return self.cluster(batch.views, z_t, batch.keys, config)

    def cluster(
        self, views: Sequence[View], z: list[Tokens], keys: Int[Tensor, " b"], config: ClusteringConfig
    ) -> Int[Tensor, "2 b n"]:
        z_cat = torch.cat([view.patches for view in z], dim=1)
        E = self.patch_places(views, z)
        seeds = self.first_centroids(keys, z_cat.shape[1], config.clusters)
        return torch.stack(cluster(z_cat, E, sent(seeds, E.device), config).chunk(2, dim=1))

    def patch_places(self, views: Sequence[View], z: list[Tokens]) -> Float[Tensor, "b n2 2"]:
        """E: positions of the patches of both views in their original image."""
        return torch.cat([patch_centers(view.geometry, t.grid) for view, t in zip(views, z, strict=True)], dim=1)

    def first_centroids(self, keys: Int[Tensor, " b"], tokens: int, clusters: int) -> Int[Tensor, "b k"]:
        """The tokens that are the initial centroids of each image."""
        return draw_seeds(fold_each(keys, streams.Cribo.SEEDS), tokens, clusters)

    def collect_objects(self, batch: Batch, z_t: list[Tokens], z_s: list[Tokens], Q: Int[Tensor, "2 b n"]) -> Objects:
        """c_1 and c_2 (eq. 1) of both networks, by the teacher's clusters; the teacher's are collected for the bank."""
        K = self.config.objects.clusters
        valid = present_in_all(Q, K)
        c_t, c_s = (mean_tokens(torch.stack([view.patches for view in z]), Q, K) for z in (z_t, z_s))
        meaning = torch.zeros_like(valid, dtype=torch.int64)
        if self.config.criterion == "segments":
            meaning = object_meanings(batch.views, z_t, Q, K)
        if self.bank is not None:
            self.bank.collect(StoredObjects(c_t.permute(1, 2, 0, 3), valid, meaning, batch.index, batch.keys))
        image, valid = batch.index[:, None].expand_as(valid).flatten(), valid.flatten()
        kept = present(valid)
        c_t, c_s = c_t.flatten(1, 2)[:, kept], c_s.flatten(1, 2)[:, kept]
        return Objects(c_t, c_s, image[kept], meaning.flatten()[kept], valid[kept])

    def project(self, c: Objects) -> tuple[Float[Tensor, "2 m p"], Float[Tensor, "2 m p"]]:
        """h_s(c_s) and h_t(c_t), before the prototypes."""
        return self.head(c.student), self.teacher_head(c.teacher)

    @torch.no_grad()
    def find_neighbours(self, bank: ObjectBank, c: Objects) -> tuple[Int[Tensor, "2 m"], Bool[Tensor, "2 m"]]:
        """Neighbours (eq. 2) as slots of the bank, and which are accepted: O of eq. 4, or its replacement."""
        nn = bank.nearest(c.teacher, c.image)
        if self.config.criterion == "none":
            return nn, (nn >= 0) & c.valid
        if self.config.criterion == "segments":
            return nn, (bank.meaning.flatten()[nn.clamp_min(0)] == c.meaning) & (nn >= 0) & c.valid
        B, among, own = gather_objects(c.teacher, c.valid, self.config.object_batch)
        return nn, closes_cycle(nn, B, bank.rows.flatten(1, 2), start=own, among=among) & c.valid

    def object_softmax(self, progress: Progress) -> ObjectSoftmax:
        config = self.config
        warmup = config.object_warmup_teacher_temp or config.warmup_teacher_temp
        final = config.object_teacher_temp or config.teacher_temp
        return ObjectSoftmax(
            self.head.prototypes("objects"),
            self.teacher_head.network.prototypes("objects"),
            self.object_center.value,
            config.object_student_temp or config.student_temp,
            ramp_per_epoch(progress, config.warmup_teacher_temp_epochs, warmup, final),
        )

    @torch.no_grad()
    def project_neighbours(
        self, bank: ObjectBank, nn: Int[Tensor, "2 m"], teaches: Bool[Tensor, "2 m"]
    ) -> list[Float[Tensor, "_ p"]]:
        """The teacher's projections of the accepted neighbours; on a CPU no other rows are read from the bank."""
        return [self.teacher_head(bank.take(i, nn[i][present(teaches[i])].clamp_min(0))) for i in (0, 1)]

    def after_update(self, progress: Progress) -> None:
        super().after_update(progress)
        if self.config.image_weight:
            self.center.update()
        if self.config.uses_objects:
            self.object_center.update()
        if self.bank is not None:
            self.bank.store()

    @torch.no_grad()
    def pictures(self, pixels: Float[Tensor, "b 3 h w"], key: int) -> dict[str, Float[Tensor, "b 3 h w"]]:
        """Objects of two overlapping crops; clustered as in training, except where training used labels."""
        views = corner_views(pixels)
        z = encode_views(self.teacher_backbone, [view.pixels for view in views])
        keys = torch.tensor([fold(key, number) for number in range(len(pixels))])
        config = self.config.objects.for_pictures(2 * z[0].patches.shape[1])
        crops = [denormalise(view.pixels, self.mean, self.std).clamp(0, 1) for view in views]
        drawn = draw_objects(crops, z, self.cluster(views, z, keys, config), config.clusters)
        return {name: normalise(picture, self.mean, self.std) for name, picture in drawn.items()}
