"""FLSL: feature-level self-supervised learning (Su et al., 2023).

Objects and stuff are clusters of patch tokens. Inside a view, mean-shift (attention without projections) takes each
token to the mode of its cluster, and the token is drawn towards that mode. Across views, the same token retrieves its
cluster from what a teacher makes of another crop of the same place, and both modes are to fall into the same of K
clusters over the whole data set, while all K stay in use. There is no class token.

    f_s, f_t; g_s, g_t   backbone and teacher_backbone; head and teacher_head
    X^+, X               teacher crops, two at one place; student crops, cut inside them
    z, Z, Z^+            queries (one token per window); all tokens of the student's view; those of the teacher's
    τ                    intra_scale/√d (eq. 4) and inter_scale/√d (eq. 12)
    ẑ, ẑ^+               modes = mean_shift(z, Z); positives = mean_shift(z, Z^+)
    p(ẑ), p(ẑ^+)         softmax over prototypes, student_temp and teacher_temp
    p̄, π                 mean_probability over queries, crops and processes; prior
    υ, η, γ              intra_weight, inter_weight, volume_weight (eq. 13)
    λ                    momentum of the teacher, from momentum to 1
    K                    out_dim
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int
from pydantic import Field, model_validator
from torch import Tensor

from asterism.config import Config
from asterism.errors import UserError
from asterism.methods._colors import ColorsConfig
from asterism.methods._self_distillation import PrototypeDistillation, PrototypeHeadConfig, prototype_head
from asterism.methods.base import MethodConfig
from asterism.nn.backbone import BackboneConfig, encode_views
from asterism.nn.heads import PrototypeHead
from asterism.ops.collectives import all_reduce_mean_with_grad
from asterism.ops.geometry import project
from asterism.ops.losses import entropy
from asterism.ops.mean_shift import mean_shift, mode_distance, take
from asterism.ops.random import fold_each
from asterism.ops.soft_clusters import Agreement, Assignments, agreement, balancing_offset, divergence
from asterism.ops.window_sampling import WindowMode, sample_windows
from asterism.types import Batch, CropGeometry, Losses, Progress, ViewSpec

PLACES = 2  # teacher crops of an image, and student crops at full size
_QUERIES = 0x0F  # tells the draw of queries from other uses of the same key


class PowerLaw(Config):
    """A prior whose k-th cluster has a share in proportion to k^(−exponent): few large clusters, many small ones."""

    exponent: float = Field(default=0.25, ge=0)


class FlslConfig(ColorsConfig, PrototypeHeadConfig):
    """Settings of FLSL; the defaults are those of the paper. Temperatures divide logits; sizes are in pixels."""

    name: Literal["flsl"] = "flsl"

    # Views (appendix E.3)
    crops: Literal["nested", "symmetric"] = "nested"  # symmetric: two crops, each for both networks (collapses, E.3)
    view_size: int | None = Field(default=None, gt=0)  # of teacher and student crops; None: the backbone's image size
    teacher_scale: tuple[float, float] = (0.8, 1.0)  # share of the image's area
    student_scale: tuple[float, float] = (0.5, 1.0)  # share of the teacher crop's area; of the image's, if symmetric
    local_views: int = Field(default=0, ge=0)  # small student crops inside the large ones, by turns
    local_size: int | None = Field(default=None, gt=0)  # None: 3/7 of the view size (96 of 224), in whole patches
    local_scale: tuple[float, float] = (0.1, 0.4)  # share of the large crop's area
    solarize: float = Field(default=0.2, ge=0, le=1)  # probability

    # Queries (section 5, "grid random sampling", and appendix I.2)
    window: int = Field(default=2, ge=1)  # patches per side of a window, from which one query is taken
    local_window: int = Field(default=2, ge=1)  # the same in local views
    sampling: WindowMode = "random"  # any patch of the window, or always its first

    # Mean-shift (sections 4.1 and 4.2); inverse temperatures in units of 1/√d
    intra_scale: float = Field(default=0.1, gt=0)
    inter_scale: float = Field(default=0.2, gt=0)
    steps: int = Field(default=1, ge=1)  # of mean-shift inside a view
    projected_epochs: int = Field(default=0, ge=0)  # in which positives are the tokens at the same place (section 4.2)

    # Objective (eq. 13)
    intra_weight: float = Field(default=0.03, ge=0)  # υ
    inter_weight: float = Field(default=1.0, ge=0)  # η
    volume_weight: float = Field(default=5.0, ge=0)  # γ
    prior: tuple[float, ...] | PowerLaw | None = None  # π: K shares that sum to 1, or a rule; None: all equal
    targets: Literal["softmax", "sinkhorn"] = "softmax"  # sinkhorn: clusters compete for the batch (appendix I.4)

    out_dim: int = Field(default=4096, gt=1)  # clusters K (appendix I.3); the rest of head and teacher: appendix E.2

    @model_validator(mode="after")
    def _prior_is_a_distribution(self) -> FlslConfig:
        if not isinstance(self.prior, tuple):
            return self
        if len(self.prior) != self.out_dim:
            raise ValueError(f"prior has {len(self.prior)} shares for out_dim = {self.out_dim} clusters; give one each")
        if min(self.prior) <= 0:
            raise ValueError(f"prior holds {min(self.prior)}; every cluster needs a share above 0")
        if abs(math.fsum(self.prior) - 1) > 1e-4:
            total = math.fsum(self.prior)
            raise ValueError(f"the shares of prior sum to {total:.6g}; they must sum to 1: divide each by {total:.6g}")
        return self


@dataclass(frozen=True)
class Seen:
    """What a network makes of a view, and where the view lies."""

    patches: Float[Tensor, "b n d"]
    grid: tuple[int, int]
    geometry: CropGeometry


class Flsl(PrototypeDistillation[FlslConfig, PrototypeHead]):
    """Student and teacher with a shared shape, and the prior of the clusters."""

    Config: ClassVar[type[MethodConfig]] = FlslConfig

    log_prior: Float[Tensor, " k"]

    def __init__(self, config: FlslConfig, backbone: BackboneConfig) -> None:
        super().__init__(
            config, _without_class_token(backbone), lambda dim: prototype_head(config, dim, config.out_dim)
        )
        log_prior = prior_shares(config).log().float()
        self.register_buffer("log_prior", log_prior, persistent=False)  # follows from the settings
        self.uniform_terms = {"inter": math.log(config.out_dim)}
        self._check_sizes()
        for reason in _reported_to_collapse(config):
            warnings.warn(f"{reason}; the authors of FLSL report that this collapses", UserWarning, stacklevel=2)

    @property
    def views(self) -> tuple[ViewSpec, ...]:
        config = self.config
        large, small = self._view_size(), self._local_size()
        colors = config.colored(ViewSpec(size=large, flip=0.0, blur=0.5, solarize=config.solarize))
        if config.crops == "symmetric":
            places = [colors.model_copy(update={"scale": config.student_scale})] * PLACES
        else:
            first = colors.model_copy(update={"scale": config.teacher_scale})
            nested = [{"scale": config.student_scale, "inside": place} for place in range(PLACES)]
            places = [first, first.model_copy(update={"same_place": 0})]
            places += [colors.model_copy(update=changes) for changes in nested]
        local = {"size": small, "scale": config.local_scale}
        return (
            *places,
            *(colors.model_copy(update=local | {"inside": i % PLACES}) for i in range(config.local_views)),
        )

    def loss(self, batch: Batch, progress: Progress) -> Losses:
        config = self.config
        student, teacher = self.look(batch)

        places = self.query_places(student, batch.keys)
        queries = [take(seen.patches, place) for seen, place in zip(student, places, strict=True)]
        modes = [self.find_mode(query, seen) for query, seen in zip(queries, student, strict=True)]
        positives = self.retrieve(queries, teacher)
        if progress.epoch < config.projected_epochs:
            positives = at_the_same_place(places, student, teacher, otherwise=positives)

        intra = mode_distance(_rows(queries), _rows(modes))
        inter = self.agreement(_rows(modes), _rows(positives), progress)
        mean_probability = all_reduce_mean_with_grad(inter.mean_probability)
        volume = divergence(mean_probability, self.log_prior)
        return Losses(
            terms={"intra": intra, "inter": inter.cross_entropy, "volume": volume},
            weights={
                "intra": config.intra_weight,
                "inter": config.inter_weight,
                "volume": config.volume_weight,
            },
            metrics={
                "target_entropy": inter.target_entropy,
                "prediction_entropy": inter.prediction_entropy,
                "kl": inter.cross_entropy.detach() - inter.target_entropy,
                "volume_entropy": entropy(mean_probability.detach()[None]),
                "intra_similarity": 1 - intra.detach() / 2,
            },
            embeddings=teacher[0].patches.mean(dim=1),
        )

    def look(self, batch: Batch) -> tuple[list[Seen], list[Seen]]:
        """What the student makes of its views (two large ones, then local ones), and the teacher of its two.

        By turns, student views belong to the first place and query the second, and the other way round.
        """
        large = batch.views[:PLACES]
        views = batch.views if self.config.crops == "symmetric" else batch.views[PLACES:]
        drop_keys = [fold_each(batch.keys, number) for number in range(len(views))]
        student = encode_views(self.backbone, [view.pixels for view in views], drop_keys=drop_keys)
        teacher = encode_views(self.teacher_backbone, [view.pixels for view in large])
        return (
            [Seen(tokens.patches, tokens.grid, view.geometry) for tokens, view in zip(student, views, strict=True)],
            [Seen(tokens.patches, tokens.grid, view.geometry) for tokens, view in zip(teacher, large, strict=True)],
        )

    def query_places(self, student: Sequence[Seen], keys: Int[Tensor, " b"]) -> list[Int[Tensor, "b _"]]:
        """Which tokens of each student view are queries."""
        windows = [self.config.window] * PLACES + [self.config.local_window] * self.config.local_views
        return [
            sample_windows(fold_each(keys, _QUERIES, number), seen.grid, window, self.config.sampling)
            for number, (seen, window) in enumerate(zip(student, windows, strict=True))
        ]

    def find_mode(self, queries: Float[Tensor, "b q d"], seen: Seen) -> Float[Tensor, "b q d"]:
        """ẑ (eq. 4): the representative of each query's cluster in its own view."""
        scale = self.config.intra_scale / math.sqrt(self.backbone.dim)
        return mean_shift(queries, seen.patches, scale, self.config.steps)

    @torch.no_grad()
    def retrieve(
        self, queries: Sequence[Float[Tensor, "b _ d"]], teacher: Sequence[Seen]
    ) -> list[Float[Tensor, "b _ d"]]:
        """ẑ⁺ (eq. 12): the representative of each query's cluster in the teacher's view of the other place.

        Differs from the paper's pseudo-code, which queries with modes; equation 13 does with the tokens themselves.
        """
        scale = self.config.inter_scale / math.sqrt(self.backbone.dim)
        positives: list[Tensor] = list(queries)
        for place in range(PLACES):
            asking = positives[place::PLACES]
            found = mean_shift(torch.cat(asking, dim=1), teacher[1 - place].patches, scale)
            positives[place::PLACES] = torch.split(found, [query.shape[1] for query in asking], dim=1)
        return positives

    def agreement(self, modes: Float[Tensor, "n d"], positives: Float[Tensor, "n d"], progress: Progress) -> Agreement:
        """Cross-entropy of p(ẑ) against p(ẑ⁺), and the mean of p(ẑ) over this process's queries."""
        config, head, teacher = self.config, self.head, self.teacher_head.network
        with torch.no_grad():
            targets = Assignments(teacher.project(positives), teacher.last_layer.weight, self.teacher_temp(progress))
            if config.targets == "sinkhorn":
                # Differs from the paper: its softmax over the batch leaves rows that do not sum to 1; ours do.
                targets = replace(targets, offset=balancing_offset(targets))
        return agreement(Assignments(head.project(modes), head.last_layer.weight, config.student_temp), targets)

    def _view_size(self) -> int:
        return self.config.view_size or self.backbone.image_size

    def _local_size(self) -> int:
        patch = self.backbone.patch_size
        return self.config.local_size or max(patch, round(self._view_size() * 3 / 7 / patch) * patch)

    def _check_sizes(self) -> None:
        """Views must divide into patches, and at least one window must fit each of them."""
        config, patch = self.config, self.backbone.patch_size
        checked = [("view_size", self._view_size(), "window", config.window)]
        if config.local_views:
            checked.append(("local_size", self._local_size(), "local_window", config.local_window))
        for size_name, size, window_name, window in checked:
            side = size // patch
            if size % patch:
                raise UserError(f"method.{size_name} = {size} is no multiple of the patch size {patch}")
            if window > side:
                raise UserError(
                    f"method.{window_name} = {window} does not fit a view of {size} pixels, which has {side}×{side} "
                    f"patches; choose 1 … {side}"
                )


@torch.no_grad()
def at_the_same_place(
    places: Sequence[Int[Tensor, "b _"]],
    student: Sequence[Seen],
    teacher: Sequence[Seen],
    otherwise: Sequence[Float[Tensor, "b _ d"]],
) -> list[Float[Tensor, "b _ d"]]:
    """The teacher's tokens that show what the queries show; where its crop does not, `otherwise`."""
    positives = []
    for number, (seen, place, fallback) in enumerate(zip(student, places, otherwise, strict=True)):
        other = teacher[1 - number % PLACES]
        cells, visible = project(seen.geometry, other.geometry, seen.grid, other.grid)
        there = take(other.patches, cells.gather(1, place)).to(fallback.dtype)
        positives.append(torch.where(visible.gather(1, place)[..., None], there, fallback))
    return positives


def prior_shares(config: FlslConfig) -> Float[Tensor, " k"]:
    """π as numbers that sum to 1, in double precision."""
    if isinstance(config.prior, tuple):
        return torch.tensor(config.prior, dtype=torch.float64)
    exponent = config.prior.exponent if config.prior is not None else 0.0
    shares = torch.arange(1, config.out_dim + 1, dtype=torch.float64) ** -exponent
    return shares / shares.sum()


def _without_class_token(backbone: BackboneConfig) -> BackboneConfig:
    if backbone.class_token:
        raise UserError(
            "backbone.class_token = true: FLSL's objective has no class token, so it would learn nothing; leave the "
            "setting out or make it false"
        )
    return backbone.model_copy(update={"class_token": False})


def _reported_to_collapse(config: FlslConfig) -> list[str]:
    """Settings that the paper or its code warn of."""
    reasons = []
    if config.inter_scale < config.intra_scale:
        reasons.append(
            f"method.inter_scale = {config.inter_scale} is below method.intra_scale = {config.intra_scale}: "
            "queries are spread wider over the teacher's view than over their own"
        )
    if config.intra_weight == 0:
        reasons.append("method.intra_weight = 0 leaves out the clustering inside a view (table 5)")
    if config.crops == "symmetric":
        reasons.append("method.crops = symmetric gives student and teacher the same crops (appendix E.3)")
    return reasons


def _rows(parts: Sequence[Float[Tensor, "b _ d"]]) -> Float[Tensor, "n d"]:
    return torch.cat([part.flatten(0, 1) for part in parts])
