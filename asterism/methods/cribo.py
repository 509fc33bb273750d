"""CrIBo: cross-image object-level bootstrapping (Lebailly, Stegmüller et al., 2024).

The teacher's tokens of two views of an image are clustered together, so an object (the mean token of a cluster) has a
counterpart in the other view. A student learns, over prototypes, what the teacher says of the other view: of the image,
of each object, and of the object most like it that the teacher saw in *another* image lately. Such a neighbour is
believed only if the way back, by the other view, ends at the object where it began.

    f_s, f_t           backbone, teacher_backbone
    h, h̄               head: one projection, prototypes for objects and for images
    z_1, z_2, N        patch tokens of the two views
    Q*, K, λ_pos       labels of the tokens; objects.clusters, objects.position_weight          (eq. 12–17)
    c_1^k, c_2^k       objects: mean tokens of cluster k in each view                           (eq. 1)
    M_1, M_2, S        bank: objects of the newest images in each view; bank_images
    nn, jump, O        bank.nearest, the same slot of the other view, close_cycles              (eq. 2–4)
    L_cv^g, L_cv^o, L_ci^o   the terms image, objects and neighbours                            (eq. 6, 8, 10)
    Z_1, Z_2           how many objects of each view have a neighbour that is believed

Differs from the paper: every term is half as large, as in the published code. Targets are centred, as there. The bank
knows which rows are real instead of beginning with noise, and never gives an image its own objects of an earlier epoch.
Differs from the published code: each direction of the neighbours' term is divided by its own count (eq. 8), not both by
Z_1, and counts are those of all processes. Where a step has several micro-batches, the batch in which a cycle must end
is the micro-batch of all processes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn import functional as F

from asterism.errors import UserError
from asterism.methods._colors import ColorsConfig
from asterism.methods._self_distillation import PrototypeDistillation, PrototypeHeadConfig, leveled_prototype_head
from asterism.methods.base import MethodConfig
from asterism.nn.backbone import BackboneConfig, encode_views
from asterism.nn.center import Center
from asterism.nn.heads import LeveledPrototypeHead, image_tokens
from asterism.nn.object_bank import ObjectBank, StoredObjects, close_cycles
from asterism.ops.clustering import (
    ClusteringConfig,
    cluster,
    draw_seeds,
    label_sets,
    labels_of_patches,
    largest_regions,
    mean_tokens,
    present_in_all,
)
from asterism.ops.collectives import all_gather_ragged_rows, all_gather_rows, all_reduce_sum, rank, world_size
from asterism.ops.geometry import geometry_from_rows, patch_centers
from asterism.ops.losses import cross_view_loss, entropy, soft_targets
from asterism.ops.overlay import spotlight, tint
from asterism.ops.pixels import denormalise, normalise
from asterism.ops.random import fold, fold_each
from asterism.ops.row_search import most_similar_row
from asterism.ops.soft_clusters import Assignments, agreement
from asterism.types import Batch, Losses, Progress, Tokens, View, ViewSpec

VIEWS = 2
_SEEDS = 0x60  # tells the draw of first centroids from other uses of an image's key


class CriboConfig(ColorsConfig, PrototypeHeadConfig):
    """Settings of CrIBo; the defaults suit a ViT-S/16 on ImageNet. Temperatures divide logits; sizes are in pixels."""

    name: Literal["cribo"] = "cribo"

    # Views (section 4, as DINO's without small ones)
    view_size: int | None = Field(default=None, gt=0)  # None: the backbone's image size
    scale: tuple[float, float] = (0.25, 1.0)  # share of the image's area
    solarize: float = Field(default=0.2, ge=0, le=1)  # probability, of the second view

    # Objects (section 3.2.1) and their neighbours (section 3.2.2)
    objects: ClusteringConfig = ClusteringConfig()
    bank_images: int = Field(default=25000, ge=1)  # S; each with a slot for every cluster
    bank_precision: Literal["half", "full"] = "half"
    criterion: Literal["cycle", "none", "segments"] = "cycle"
    # which neighbours are believed; none: all of them (table 8); segments: those that people labelled alike (table 11)

    # Terms (section 3.2.3; table 5 leaves some out); the paper adds them unweighted
    image_weight: float = Field(default=1.0, ge=0)
    object_weight: float = Field(default=1.0, ge=0)
    neighbour_weight: float = Field(default=1.0, ge=0)
    neighbour_start: int = Field(default=1, ge=0)  # epochs before neighbours teach: at first they mean nothing

    # Levels of the head, and the centres of what the teacher says on them
    out_dim: int = Field(default=65536, gt=1)  # prototypes of images
    object_out_dim: int = Field(default=65536, gt=1)  # prototypes of objects
    center_momentum: float = Field(default=0.9, ge=0, lt=1)
    object_center_momentum: float = Field(default=0.9, ge=0, lt=1)

    @model_validator(mode="after")
    def _something_to_learn(self) -> CriboConfig:
        if self.image_weight == self.object_weight == self.neighbour_weight == 0:
            raise ValueError(
                "image_weight, object_weight and neighbour_weight are all 0; give at least one a positive weight"
            )
        return self


@dataclass(frozen=True)
class Objects:
    """The objects that both views of an image show, of all images of this process one after another."""

    teacher: Float[Tensor, "v m d"]
    student: Float[Tensor, "v m d"]
    image: Int[Tensor, " m"]  # place in its source of the image that each belongs to
    meaning: Int[Tensor, " m"]  # of the labels under it, if neighbours are believed by them
    images: int  # how many images there are, with objects or without


class Cribo(PrototypeDistillation[CriboConfig, LeveledPrototypeHead]):
    """Student and teacher with one projection for images and objects, two centres, and the bank of objects."""

    Config: ClassVar[type[MethodConfig]] = CriboConfig
    shows: ClassVar[str] = (
        "The objects found in two overlapping crops, each in one colour (dark: in one crop only); then one object of "
        "the first crop, and the object most like it in another image."
    )

    def __init__(self, config: CriboConfig, backbone: BackboneConfig) -> None:
        uses_objects = config.object_weight > 0 or config.neighbour_weight > 0
        out_dims = {"image": config.out_dim} if config.image_weight else {}
        out_dims |= {"objects": config.object_out_dim} if uses_objects else {}
        super().__init__(config, backbone, lambda dim: leveled_prototype_head(config, dim, out_dims))
        self.uses_objects = uses_objects
        self._check_sizes()
        self.center = Center(config.out_dim, config.center_momentum)
        self.object_center = Center(config.object_out_dim, config.object_center_momentum)
        self.bank = self._new_bank() if config.neighbour_weight else None
        weights = {"image": config.image_weight, "objects": config.object_weight}
        sizes = {"image": config.out_dim, "objects": config.object_out_dim}
        self.uniform_terms = {term: math.log(sizes[term]) for term, weight in weights.items() if weight > 0}

    def _new_bank(self) -> ObjectBank:
        config = self.config
        dtype = torch.float16 if config.bank_precision == "half" else torch.float32
        return ObjectBank(config.bank_images, config.objects.clusters, self.backbone.dim, dtype)

    @property
    def views(self) -> tuple[ViewSpec, ...]:
        config = self.config
        view = ViewSpec(size=self._view_size(), scale=config.scale, segments=self._uses_labels)
        common = config.colored(view)
        return (
            common.model_copy(update={"blur": 1.0}),
            common.model_copy(update={"blur": 0.1, "solarize": config.solarize}),
        )

    def loss(self, batch: Batch, progress: Progress) -> Losses:
        config = self.config
        pixels = [view.pixels for view in batch.views]
        keys = [fold_each(batch.keys, number) for number in range(VIEWS)]
        seen = encode_views(self.teacher_backbone, pixels)
        tokens = encode_views(self.backbone, pixels, drop_keys=keys)

        terms: dict[str, Tensor] = {}
        metrics: dict[str, Tensor] = {}
        if config.image_weight:
            terms["image"], found = self.image_loss(seen, tokens, progress)
            metrics |= found
        if self.uses_objects:
            labels = self.find_objects(batch.views, seen, batch.keys)
            objects = self.collect_objects(batch, seen, tokens, labels)
            of_objects, found = self.object_losses(objects, progress)
            terms |= of_objects
            metrics |= found
        return Losses(
            terms=terms,
            weights={
                "image": config.image_weight,
                "objects": config.object_weight,
                "neighbours": config.neighbour_weight,
            },
            metrics=metrics,
            embeddings=image_tokens(seen)[0],
        )

    def image_loss(
        self, seen: list[Tokens], tokens: list[Tokens], progress: Progress
    ) -> tuple[Float[Tensor, ""], dict[str, Float[Tensor, ""]]]:
        """L_cv^g: the class token of each view predicts the teacher's of the other one."""
        temperature, teacher_head = self.config.student_temp, self.teacher_head.network
        with torch.no_grad():
            teacher = teacher_head.logits(teacher_head(image_tokens(seen)), "image")
        targets = soft_targets(teacher, self.center.value, self.teacher_temp(progress))
        self.center.accumulate(teacher)
        student = self.head.logits(self.head(image_tokens(tokens)), "image")
        loss = cross_view_loss(targets, student, temperature)
        target_entropy = entropy(targets)
        return loss, {
            "target_entropy": target_entropy,
            "prediction_entropy": entropy((student.detach().float() / temperature).softmax(dim=-1)),
            "kl": loss.detach() - target_entropy,
            "center_norm": self.center.value.norm(),
        }

    @torch.no_grad()
    def find_objects(
        self, views: Sequence[View], seen: Sequence[Tokens], keys: Int[Tensor, " b"]
    ) -> Int[Tensor, "v b n"]:
        """Q*: the object of every token, the same number for the same object in both views."""
        config = self.config.objects
        if config.algorithm == "segments":
            return labelled_objects(views, seen, config.clusters)
        return clustered_objects(views, seen, keys, config)

    def collect_objects(
        self, batch: Batch, seen: Sequence[Tokens], tokens: Sequence[Tokens], labels: Int[Tensor, "v b n"]
    ) -> Objects:
        """c_1 and c_2 of both networks by the teacher's labels; the teacher's are put down for the bank."""
        clusters = self.config.objects.clusters
        valid = present_in_all(labels, clusters)
        teacher, student = (
            mean_tokens(torch.stack([view.patches for view in views]), labels, clusters) for views in (seen, tokens)
        )
        meaning = torch.zeros_like(valid, dtype=torch.int64)
        if self.config.criterion == "segments":
            meaning = label_sets(labels, segment_labels(batch.views, seen), clusters)
        if self.bank is not None:
            self.bank.collect(StoredObjects(teacher.permute(1, 2, 0, 3), valid, meaning, batch.index, batch.keys))
        image = batch.index[:, None].expand_as(valid)
        return Objects(teacher[:, valid], student[:, valid], image[valid], meaning[valid], images=len(valid))

    def object_losses(
        self, objects: Objects, progress: Progress
    ) -> tuple[dict[str, Float[Tensor, ""]], dict[str, Float[Tensor, ""]]]:
        """L_cv^o and L_ci^o, and what they tell of the objects."""
        ours, theirs = self.head(objects.student), self.teacher_head(objects.teacher)
        prototypes = self.object_prototypes(progress)
        count = all_reduce_sum(torch.tensor(ours.shape[1], device=ours.device))
        terms: dict[str, Tensor] = {}
        metrics: dict[str, Tensor] = {"objects_per_image": count / (objects.images * world_size())}
        if self.config.object_weight:
            found = cross_view_term(prototypes, ours, theirs, count)
            terms["objects"] = found.cross_entropy
            metrics["object_target_entropy"] = found.target_entropy
            metrics["object_prediction_entropy"] = found.prediction_entropy
        if self.bank is not None:
            slots, believed = self.find_neighbours(self.bank, objects)
            terms["neighbours"] = self.neighbour_loss(self.bank, prototypes, ours, slots, believed, progress)
            places = VIEWS * self.config.objects.clusters * objects.images * world_size()
            metrics["bootstrapping_ratio"] = all_reduce_sum(believed.sum()) / places
            metrics["bank_filled"] = self.bank.filled_share
        metrics["object_center_norm"] = self.object_center.value.norm()
        self._note_objects(theirs)
        return terms, metrics

    @torch.no_grad()
    def find_neighbours(self, bank: ObjectBank, objects: Objects) -> tuple[Int[Tensor, "v m"], Bool[Tensor, "v m"]]:
        """Its nn and O: the slot of the bank most like each object, and whether it is believed."""
        slots = bank.nearest(objects.teacher, objects.image)
        if self.config.criterion == "none":
            return slots, slots >= 0
        if self.config.criterion == "segments":
            return slots, (bank.meaning.flatten()[slots.clamp_min(0)] == objects.meaning) & (slots >= 0)
        count = torch.tensor([len(objects.image)], device=slots.device)
        before = all_gather_rows(count)[: rank()].sum()
        everyone = all_gather_ragged_rows(objects.teacher.transpose(0, 1)).transpose(0, 1)
        return slots, close_cycles(
            bank, slots, everyone, before + torch.arange(len(objects.image), device=slots.device)
        )

    def neighbour_loss(
        self,
        bank: ObjectBank,
        prototypes: ObjectPrototypes,
        ours: Float[Tensor, "v m p"],
        slots: Int[Tensor, "v m"],
        believed: Bool[Tensor, "v m"],
        progress: Progress,
    ) -> Float[Tensor, ""]:
        """L_ci^o: the neighbour of the object in one view teaches the student's object in the other view.

        Only what is believed is taken out of the bank and projected.
        """
        if progress.epoch < self.config.neighbour_start:
            believed = torch.zeros_like(believed)
        neighbours = [self.teacher_head(bank.take(view, slots[view][believed[view]])) for view in range(VIEWS)]
        taught = [ours[1 - view][believed[view]] for view in range(VIEWS)]
        return cross_image_term(prototypes, taught, neighbours, all_reduce_sum(believed.sum(dim=1)))

    def object_prototypes(self, progress: Progress) -> ObjectPrototypes:
        return ObjectPrototypes(
            self.head.prototypes("objects"),
            self.teacher_head.network.prototypes("objects"),
            self.object_center.value,
            self.config.student_temp,
            self.teacher_temp(progress),
        )

    @torch.no_grad()
    def _note_objects(self, theirs: Float[Tensor, "v m p"]) -> None:
        """For the centre. Logits are linear in projections, so their mean is that of the mean projection."""
        rows = theirs.flatten(0, 1)
        mean = rows.sum(dim=0) / max(1, len(rows))
        self.object_center.accumulate_mean(self.teacher_head.network.logits(mean, "objects"), len(rows))

    def after_update(self, progress: Progress) -> None:
        super().after_update(progress)
        if self.config.image_weight:
            self.center.update()
        if self.uses_objects:
            self.object_center.update()
        if self.bank is not None:
            self.bank.store()

    @torch.no_grad()
    def pictures(self, pixels: Float[Tensor, "b 3 h w"], key: int) -> dict[str, Float[Tensor, "b 3 h w"]]:
        """The objects of two overlapping crops, and of each image the oddest one beside its like in another image.

        An object has the same colour in both crops; what is dark belongs to none that both crops show.
        """
        views = corner_views(pixels)
        seen = encode_views(self.teacher_backbone, [view.pixels for view in views])
        keys = torch.tensor([fold(key, number) for number in range(len(pixels))], device=pixels.device)
        config = self.config.objects
        clusters = min(config.clusters, VIEWS * seen[0].patches.shape[1])
        search = config if config.algorithm == "kmeans" else config.model_copy(update={"algorithm": "sinkhorn"})
        labels = clustered_objects(views, seen, keys, search.model_copy(update={"clusters": clusters}))
        labels = without_partners(labels, clusters)

        crops = [denormalise(view.pixels, self.mean, self.std).clamp(0, 1) for view in views]
        maps = labels.view(VIEWS, len(pixels), *seen[0].grid)
        drawn = {f"objects of crop {number + 1}": tint(crops[number], maps[number]) for number in range(VIEWS)}
        if self.uses_objects and len(pixels) > 1:
            objects = mean_tokens(torch.stack([view.patches for view in seen]), labels, clusters)[0]
            odd, (image, like) = odd_objects(objects), odd_neighbours(objects)
            drawn["an object of crop 1"] = spotlight(crops[0], maps[0] == odd[:, None, None])
            drawn["its like elsewhere"] = spotlight(crops[0][image], maps[0][image] == like[:, None, None])
        return {name: normalise(picture, self.mean, self.std) for name, picture in drawn.items()}

    @property
    def _uses_labels(self) -> bool:
        """Whether one of the oracles of table 11 is asked."""
        return self.uses_objects and "segments" in (self.config.objects.algorithm, self.config.criterion)

    def _view_size(self) -> int:
        return self.config.view_size or self.backbone.image_size

    def _check_sizes(self) -> None:
        """Views must divide into patches, and there must be a token for every cluster."""
        size, patch, clusters = self._view_size(), self.backbone.patch_size, self.config.objects.clusters
        if size % patch:
            raise UserError(
                f"views of {size} pixels do not divide into patches of {patch}; set method.view_size to a multiple of "
                f"{patch}"
            )
        tokens = VIEWS * (size // patch) ** 2
        if self.uses_objects and clusters > tokens:
            raise UserError(
                f"method.objects.clusters = {clusters} is more than the {tokens} tokens of two views of {size} pixels; "
                f"choose 1 … {tokens}"
            )


def clustered_objects(
    views: Sequence[View], seen: Sequence[Tokens], keys: Int[Tensor, " b"], config: ClusteringConfig
) -> Int[Tensor, "v b n"]:
    """Clusters of the tokens of both views, which start from tokens drawn by the images' keys."""
    tokens = torch.cat([view.patches for view in seen], dim=1)
    positions = torch.cat([patch_centers(view.geometry, t.grid) for view, t in zip(views, seen, strict=True)], dim=1)
    seeds = draw_seeds(fold_each(keys, _SEEDS), tokens.shape[1], config.clusters)
    return torch.stack(cluster(tokens, positions, seeds, config).chunk(VIEWS, dim=1))


def labelled_objects(views: Sequence[View], seen: Sequence[Tokens], clusters: int) -> Int[Tensor, "v b n"]:
    """The oracle of table 11: regions that people drew."""
    labels = torch.cat(list(segment_labels(views, seen)), dim=1)
    return torch.stack(largest_regions(labels, clusters).chunk(VIEWS, dim=1))


def segment_labels(views: Sequence[View], seen: Sequence[Tokens]) -> Int[Tensor, "v b n"]:
    """The label of every patch."""
    labels = []
    for view, tokens in zip(views, seen, strict=True):
        if view.segments is None:
            raise UserError(
                "method.objects.algorithm or method.criterion = segments needs images with labelled regions, and these "
                "have none; choose another, or data with masks"
            )
        labels.append(labels_of_patches(view.segments, tokens.grid))
    return torch.stack(labels)


# ------------------------------------------------------------------------------------------------------------- losses


@dataclass(frozen=True)
class ObjectPrototypes:
    """How projections of objects become distributions: softmax(W p/τ_s) and softmax((W' p' − centre)/τ_t)."""

    student: Float[Tensor, "k p"]
    teacher: Float[Tensor, "k p"]
    center: Float[Tensor, " k"]
    student_temp: float
    teacher_temp: float

    def compare(self, ours: Float[Tensor, "n p"], theirs: Float[Tensor, "n p"]) -> Comparison:
        """Sums over rows; zero, but with a gradient (of zeros) for every parameter, where there are none."""
        if len(ours) == 0:
            nothing = 0.0 * (ours.sum() + self.student.sum())
            return Comparison(nothing, nothing.detach(), nothing.detach())
        found = agreement(
            Assignments(ours, self.student, self.student_temp),
            Assignments(theirs, self.teacher, self.teacher_temp, offset=self.center / self.teacher_temp),
        )
        n = len(ours)
        return Comparison(n * found.cross_entropy, n * found.target_entropy, n * found.prediction_entropy)


@dataclass(frozen=True)
class Comparison:
    """Of a student's distributions with a teacher's; the entropies are for monitoring."""

    cross_entropy: Float[Tensor, ""]
    target_entropy: Float[Tensor, ""]
    prediction_entropy: Float[Tensor, ""]


def cross_view_term(
    prototypes: ObjectPrototypes,
    ours: Float[Tensor, "v m p"],
    theirs: Float[Tensor, "v m p"],
    count: Int[Tensor, ""],
) -> Comparison:
    """Equation 6, halved: means over both directions and over the `count` objects of all processes."""
    sums = prototypes.compare(ours.flatten(0, 1), theirs.flip(0).flatten(0, 1))
    means = [half_of_mean(total, count) for total in (sums.cross_entropy, sums.target_entropy, sums.prediction_entropy)]
    return Comparison(*means)


def cross_image_term(
    prototypes: ObjectPrototypes,
    ours: Sequence[Float[Tensor, "_ p"]],
    theirs: Sequence[Float[Tensor, "_ p"]],
    counts: Int[Tensor, " v"],
) -> Float[Tensor, ""]:
    """Equation 8, halved: each direction is a mean over its own count of all processes, or zero if that is zero."""
    sums = [prototypes.compare(*rows).cross_entropy for rows in zip(ours, theirs, strict=True)]
    return torch.stack([half_of_mean(total, count) for total, count in zip(sums, counts, strict=True)]).sum()


def half_of_mean(total: Float[Tensor, ""], count: Int[Tensor, ""]) -> Float[Tensor, ""]:
    """½ total/count, or zero if there is nothing to count; times the number of processes.

    The count is that of all processes, so the mean of what they return is half the mean over all rows.
    """
    return total * (count > 0) * (world_size() / 2) / count.clamp_min(1)


# ----------------------------------------------------------------------------------------------------------- pictures


def corner_views(pixels: Float[Tensor, "b 3 h w"]) -> tuple[View, View]:
    """Two crops of ¾ of each side, of the top left and, mirrored, of the bottom right corner."""
    (b, _, height, width), device = pixels.shape, pixels.device
    tall, wide = round(0.75 * height), round(0.75 * width)
    views = []
    for top, left, flip in ((0, 0, False), (height - tall, width - wide, True)):
        crop = F.interpolate(
            pixels[:, :, top : top + tall, left : left + wide], (height, width), mode="bilinear", align_corners=False
        )
        row = torch.tensor([top, left, tall, wide, height, width, flip], dtype=torch.float32, device=device)
        views.append(View(crop.flip(-1) if flip else crop, geometry_from_rows(row.expand(b, -1))))
    return views[0], views[1]


def without_partners(labels: Int[Tensor, "v b n"], clusters: int) -> Int[Tensor, "v b n"]:
    """Labels with −1 for what is missing in one of the views."""
    alone = ~present_in_all(labels, clusters)
    return labels.masked_fill(alone.expand(len(labels), -1, -1).gather(2, labels), -1)


def odd_objects(objects: Float[Tensor, "b k d"]) -> Int[Tensor, " b"]:
    """The object of each image that is least like the others together; objects that are missing are zero."""
    present = objects.any(dim=-1)
    likeness = F.cosine_similarity(objects, objects.sum(dim=1, keepdim=True), dim=-1)
    return likeness.masked_fill(~present, torch.inf).argmin(dim=1)


def odd_neighbours(objects: Float[Tensor, "b k d"]) -> tuple[Int[Tensor, " b"], Int[Tensor, " b"]]:
    """For the oddest object of each image the most similar one of another image, as (image, object)."""
    b, k, _ = objects.shape
    image = torch.arange(b, device=objects.device)
    present = objects.any(dim=-1).flatten().nonzero()[:, 0]
    slot = most_similar_row(
        objects[image, odd_objects(objects)],
        objects.flatten(0, 1),
        among=present,
        query_group=image,
        row_group=image.repeat_interleave(k),
    ).clamp_min(0)
    return slot // k, slot % k
