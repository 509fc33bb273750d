"""FLSL: feature-level self-supervised learning (Su et al., 2023).

Objects and stuff are clusters of patch tokens. Within a view, mean-shift (attention without projections) moves each
token to the mode of its cluster, and the loss pulls the token towards that mode. Across views, the same token retrieves
its cluster from the teacher's tokens of another crop of the same region. Both modes should be assigned to the same of K
clusters over the whole data set, while all K stay in use. There is no class token.

    f_s, f_t; g_s, g_t   backbone and teacher_backbone; head and teacher_head
    X⁺, X                teacher crops, two of the same region; student crops, cut inside them
    z, Z, Z⁺             queries (one token per window); all tokens of the student's view; those of the teacher's
    τ                    intra_scale/√d (eq. 4) and inter_scale/√d (eq. 12)
    ẑ, ẑ⁺                mean_shift(z, Z) and mean_shift(z, Z⁺), in code ẑ and ẑ_plus
    p(ẑ), p(ẑ⁺)          softmax over prototypes, with student_temp and teacher_temp
    p̄, π                 mean p(ẑ) over queries, crops and processes; prior
    υ, η, γ              intra_weight, inter_weight, volume_weight (eq. 13)
    λ                    momentum of the teacher, from momentum to 1
    K                    out_dim

Differs from the paper's pseudo-code, which has errors (its query of the teacher's view is ẑ, its volume term is a
constant): this follows equations 4, 12 and 13. Differs from the published code: the scales are divided by √d, where
the code has √384 for every network; queries are drawn at random (sampling: fixed takes each window's first token, the
code's default). Positives at projected positions (projected_epochs) and balanced targets (targets: sinkhorn) are in the
paper only; balanced rows here sum to 1, which a softmax over the batch alone does not give.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int
from pydantic import model_validator
from torch import Tensor

from asterism.errors import UserError
from asterism.methods.base import MethodConfig
from asterism.methods.parts.self_distillation import PrototypeDistillation, PrototypeHeadConfig, prototype_head
from asterism.methods.parts.views import ColorsConfig, check_view_size, usual_local_size
from asterism.nn.backbone import BackboneConfig, encode_views
from asterism.nn.heads import PrototypeHead
from asterism.ops import streams
from asterism.ops.collectives import all_reduce_mean_with_grad
from asterism.ops.geometry import project
from asterism.ops.host import sent
from asterism.ops.losses import entropy
from asterism.ops.mean_shift import mean_shift, mode_distance, take
from asterism.ops.random import fold_each
from asterism.ops.soft_clusters import (
    Agreement,
    Assignments,
    Prior,
    agreement,
    balancing_offset,
    check_prior,
    divergence,
    prior_shares,
)
from asterism.ops.window_sampling import WindowMode, sample_windows
from asterism.ranges import (
    AreaRange,
    Count,
    CountFromTwo,
    CountFromZero,
    Few,
    FewFromZero,
    NonNegative,
    Pixels,
    Positive,
    Share,
)
from asterism.types import Batch, CropGeometry, Losses, Progress, ViewSpec


class FlslConfig(ColorsConfig, PrototypeHeadConfig):
    """Settings of FLSL; the defaults are those of the paper. Temperatures divide logits; sizes are in pixels."""

    name: Literal["flsl"] = "flsl"

    # Views (appendix E.3)
    crops: Literal["nested", "symmetric"] = "nested"  # symmetric: two crops, each for both networks (collapses, E.3)
    view_size: Pixels | None = None  # of teacher and student crops; None: the backbone's image size
    teacher_scale: AreaRange = (0.8, 1.0)  # share of the image's area
    student_scale: AreaRange = (0.5, 1.0)  # share of the teacher crop's area; of the image's, if symmetric
    local_views: FewFromZero = 0  # small student crops, alternately inside the two large ones
    local_size: Pixels | None = None  # None: 3/7 of the view size (96 of 224), in whole patches
    local_scale: AreaRange = (0.1, 0.4)  # share of the large crop's area
    solarize: Share = 0.2  # probability

    # Queries (section 5, "grid random sampling", and appendix I.2)
    window: Count = 2  # patches per side of a window, from which one query is taken
    local_window: Count = 2  # the same in local views
    sampling: WindowMode = "random"  # any patch of the window, or always its first

    # Mean-shift (sections 4.1 and 4.2); inverse temperatures in units of 1/√d
    intra_scale: Positive = 0.1
    inter_scale: Positive = 0.2
    steps: Few = 1  # of mean-shift inside a view
    projected_epochs: CountFromZero = 0  # first epochs, with positives at the same position (section 4.2)

    # Objective (eq. 13)
    intra_weight: NonNegative = 0.03  # υ
    inter_weight: NonNegative = 1.0  # η
    volume_weight: NonNegative = 5.0  # γ
    prior: Prior = None  # π: K shares that sum to 1, or a rule; None: all equal
    targets: Literal["softmax", "sinkhorn"] = "softmax"  # sinkhorn: clusters compete for the batch (appendix I.4)

    out_dim: CountFromTwo = 4096  # clusters K (appendix I.3); the rest of head and teacher: appendix E.2

    @model_validator(mode="after")
    def _prior_is_a_distribution(self) -> FlslConfig:
        check_prior(self.prior, self.out_dim)
        return self

    @property
    def needs_whole_batch(self) -> str | None:
        if self.targets == "sinkhorn":
            return "method.targets = sinkhorn balances clusters over the whole batch (softmax does not)"
        if self.volume_weight:
            return f"method.volume_weight = {self.volume_weight} compares the mean assignment of the whole batch with π"
        return None


@dataclass(frozen=True)
class Seen:
    """A network's tokens of a view, and the view's position."""

    tokens: Float[Tensor, "b n d"]  # Z of a student, Z⁺ of a teacher
    grid: tuple[int, int]
    geometry: CropGeometry
    place: int  # 0 or 1: the teacher crop it is, or is cut from; a student view queries the other one


class Flsl(PrototypeDistillation[FlslConfig, PrototypeHead]):
    """Student and teacher of the same shape, and the prior of the clusters."""

    Config: ClassVar[type[MethodConfig]] = FlslConfig

    log_prior: Float[Tensor, " k"]

    def __init__(self, config: FlslConfig, backbone: BackboneConfig) -> None:
        backbone = without_class_token(backbone)
        super().__init__(config, backbone, lambda dim: prototype_head(config, dim, config.out_dim))
        log_prior = prior_shares(config.prior, config.out_dim).log().float()
        self.register_buffer("log_prior", log_prior, persistent=False)  # derived from the settings
        self.uniform_terms = {"inter": math.log(config.out_dim)}
        check_windows(config, self.view_size, self.local_size, self.backbone.patch_size)
        warn_of_collapse(config)

    @property
    def view_size(self) -> int:
        return self.config.view_size or self.backbone.image_size

    @property
    def local_size(self) -> int:
        return self.config.local_size or usual_local_size(self.view_size, self.backbone.patch_size)

    @property
    def places(self) -> list[int]:
        """The place of each student view: two large ones, then local ones, alternating between the places."""
        return [0, 1, *(number % 2 for number in range(self.config.local_views))]

    @property
    def views(self) -> tuple[ViewSpec, ...]:
        config = self.config
        colors = config.colored(ViewSpec(size=self.view_size, flip=0.0, blur=0.5, solarize=config.solarize))
        if config.crops == "symmetric":
            large = [colors.model_copy(update={"scale": config.student_scale})] * 2
        else:
            first = colors.model_copy(update={"scale": config.teacher_scale})
            second = first.model_copy(update={"same_place": 0})
            nested = [{"scale": config.student_scale, "inside": place} for place in (0, 1)]
            large = [first, second, *(colors.model_copy(update=changes) for changes in nested)]
        local = {"size": self.local_size, "scale": config.local_scale}
        small = [colors.model_copy(update=local | {"inside": place}) for place in self.places[2:]]
        return (*large, *small)

    def loss(self, batch: Batch, progress: Progress) -> Losses:
        config = self.config
        υ, η, γ = config.intra_weight, config.inter_weight, config.volume_weight
        student, teacher = self.encode(batch)

        queries = self.draw_queries(student, batch.keys)
        z = [take(view.tokens, places) for view, places in zip(student, queries, strict=True)]
        ẑ = [self.find_modes(queries, view) for queries, view in zip(z, student, strict=True)]  # ẑ (eq. 4)
        ẑ_plus = self.retrieve(z, student, teacher)  # ẑ⁺ (eq. 12)
        if progress.epoch < config.projected_epochs:
            ẑ_plus = at_the_same_place(queries, student, teacher, otherwise=ẑ_plus)

        intra = mode_distance(_rows(z), _rows(ẑ))  # ‖z − ẑ‖² (eq. 8)
        inter = self.agreement(_rows(ẑ), _rows(ẑ_plus), progress)  # H(p(ẑ⁺), p(ẑ)) (eq. 11)
        p̄ = all_reduce_mean_with_grad(inter.mean_probability)
        volume = divergence(p̄, self.log_prior)  # KL(p̄ ‖ π)
        return Losses(
            terms={"intra": intra, "inter": inter.cross_entropy, "volume": volume},
            weights={"intra": υ, "inter": η, "volume": γ},  # eq. 13
            metrics={
                "target_entropy": inter.target_entropy,
                "prediction_entropy": inter.prediction_entropy,
                "kl": inter.cross_entropy.detach() - inter.target_entropy,
                "volume_entropy": entropy(p̄.detach()[None]),
                "intra_similarity": 1 - intra.detach() / 2,
            },
            embeddings=teacher[0].tokens.mean(dim=1),
        )

    def encode(self, batch: Batch) -> tuple[list[Seen], list[Seen]]:
        """The student's views (two large ones, then local ones), and the teacher's two."""
        teacher_views = batch.views[:2]
        student_views = batch.views if self.config.crops == "symmetric" else batch.views[2:]
        drop_keys = [fold_each(batch.keys, number) for number in range(len(student_views))]
        student = encode_views(self.backbone, [view.pixels for view in student_views], drop_keys=drop_keys)
        teacher = encode_views(self.teacher_backbone, [view.pixels for view in teacher_views])
        return (
            [
                Seen(t.patches, t.grid, v.geometry, p)
                for t, v, p in zip(student, student_views, self.places, strict=True)
            ],
            [Seen(t.patches, t.grid, v.geometry, p) for t, v, p in zip(teacher, teacher_views, (0, 1), strict=True)],
        )

    def draw_queries(self, student: Sequence[Seen], keys: Int[Tensor, " b"]) -> list[Int[Tensor, "b _"]]:
        """The indices of each student view's tokens that are queries."""
        windows = [self.config.window] * 2 + [self.config.local_window] * self.config.local_views
        return [
            sent(
                sample_windows(fold_each(keys, streams.Flsl.QUERIES, number), view.grid, window, self.config.sampling),
                view.tokens.device,
            )
            for number, (view, window) in enumerate(zip(student, windows, strict=True))
        ]

    def find_modes(self, z: Float[Tensor, "b q d"], view: Seen) -> Float[Tensor, "b q d"]:
        """ẑ (eq. 4): the representative of each query's cluster in its own view."""
        τ = self.config.intra_scale / math.sqrt(self.backbone.dim)
        return mean_shift(z, view.tokens, τ, self.config.steps)

    @torch.no_grad()
    def retrieve(
        self, z: Sequence[Float[Tensor, "b _ d"]], student: Sequence[Seen], teacher: Sequence[Seen]
    ) -> list[Float[Tensor, "b _ d"]]:
        """ẑ⁺ (eq. 12): the representative of each query's cluster in the teacher's view of the other place.

        All queries of one place share a call, so its keys are read once.
        """
        τ = self.config.inter_scale / math.sqrt(self.backbone.dim)
        ẑ_plus: dict[int, Tensor] = {}
        for own, other in ((0, 1), (1, 0)):
            asking = [number for number, view in enumerate(student) if view.place == own]
            found = mean_shift(torch.cat([z[number] for number in asking], dim=1), teacher[other].tokens, τ)
            ẑ_plus |= zip(asking, torch.split(found, [z[number].shape[1] for number in asking], dim=1), strict=True)
        return [ẑ_plus[number] for number in range(len(z))]

    def agreement(self, ẑ: Float[Tensor, "n d"], ẑ_plus: Float[Tensor, "n d"], progress: Progress) -> Agreement:
        """H(p(ẑ⁺), p(ẑ)), and the mean of p(ẑ) over this process's queries."""
        head, teacher = self.head, self.teacher_head.network
        p_hat = Assignments(head.project(ẑ), head.last_layer.weight, self.config.student_temp)
        with torch.no_grad():
            p_plus = Assignments(teacher.project(ẑ_plus), teacher.last_layer.weight, self.teacher_temp(progress))
            if self.config.targets == "sinkhorn":
                p_plus = replace(p_plus, offset=balancing_offset(p_plus))
        return agreement(p_hat, p_plus)


@torch.no_grad()
def at_the_same_place(
    queries: Sequence[Int[Tensor, "b _"]],
    student: Sequence[Seen],
    teacher: Sequence[Seen],
    otherwise: Sequence[Float[Tensor, "b _ d"]],
) -> list[Float[Tensor, "b _ d"]]:
    """The teacher's tokens at the queries' positions; `otherwise` where they are outside its crop."""
    ẑ_plus = []
    for view, places, fallback in zip(student, queries, otherwise, strict=True):
        (other,) = (seen for seen in teacher if seen.place != view.place)
        cells, visible = project(view.geometry, other.geometry, view.grid, other.grid)
        there = take(other.tokens, cells.gather(1, places)).to(fallback.dtype)
        ẑ_plus.append(torch.where(visible.gather(1, places)[..., None], there, fallback))
    return ẑ_plus


def _rows(views: Sequence[Float[Tensor, "b _ d"]]) -> Float[Tensor, "n d"]:
    return torch.cat([view.flatten(0, 1) for view in views])


def without_class_token(backbone: BackboneConfig) -> BackboneConfig:
    """The same network without a class token, which FLSL's objective does not train."""
    if backbone.class_token:
        raise UserError(
            "backbone.class_token = true: FLSL's objective does not train a class token; leave the setting out "
            "or make it false"
        )
    return backbone.model_copy(update={"class_token": False})


def check_windows(config: FlslConfig, view_size: int, local_size: int, patch_size: int) -> None:
    """Views must divide into patches, and at least one window must fit each of them."""
    views = [("view_size", view_size, "window", config.window)]
    if config.local_views:
        views.append(("local_size", local_size, "local_window", config.local_window))
    for size_name, size, window_name, window in views:
        check_view_size(size_name, size, patch_size)
        side = size // patch_size
        if window > side:
            raise UserError(
                f"method.{window_name} = {window} does not fit a view of {size} pixels, which has {side}×{side} "
                f"patches; choose 1 … {side}"
            )


def warn_of_collapse(config: FlslConfig) -> None:
    reasons = []
    if config.inter_scale < config.intra_scale:
        reasons.append(
            f"method.inter_scale = {config.inter_scale} is below method.intra_scale = {config.intra_scale}: "
            "queries attend more broadly over the teacher's view than over their own"
        )
    if config.intra_weight == 0:
        reasons.append("method.intra_weight = 0 leaves out the clustering within a view (table 5)")
    if config.crops == "symmetric":
        reasons.append("method.crops = symmetric gives student and teacher the same crops (appendix E.3)")
    for reason in reasons:
        warnings.warn(f"{reason}; the authors of FLSL report that this collapses", UserWarning, stacklevel=3)
