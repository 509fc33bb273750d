"""Distillation: a small student learns the features of a large frozen teacher, on images without labels.

Teacher and student see the same crop, the teacher with its own pixel statistics and at its own size. The student's
tokens are projected to the teacher's width and compared with the teacher's tokens. The queue compares an image with
many others instead, as the teacher does: it transfers similarities, not coordinates.

    f_T, f_S          teacher (frozen), backbone
    t, t_i            class token and patches of f_T(x), without gradient; t_i resampled to the student's grid
    s, s_i            cls_head of the class token and patch_head of the patches of f_S(x)
    L_cls             D(s, t)                        cls
    L_patches         mean over i of D(s_i, t_i)     patches
    D                 1 − ⟨s, t⟩/(|s| |t|), or |s − t|²/d
    z, y              t/|t| (without gradient), s/|s|
    Q                 the last K embeddings z of all processes, and z itself: SEED's D⁺        queue
    p_T, p_S          softmax(Q z/τ_T) (without gradient), softmax(Q y/τ_S)
    L_queue           −Σ_j p_T,j log p_S,j; afterwards z enters the queue

The queue is that of SEED (Fang et al., 2021); without z itself in Q and with equal temperatures that of CompRess with a
single queue (Koohpayegani et al., 2020). A backbone without a class token is represented by its mean patch.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float, Int
from pydantic import Field, model_validator
from torch import Tensor, nn

from asterism.config import Config
from asterism.errors import UserError
from asterism.methods.base import Method, MethodConfig
from asterism.methods.parts.views import ColorsConfig
from asterism.nn.backbone import BackboneConfig
from asterism.nn.encoder import Encoder
from asterism.nn.frozen_encoder import FrozenEncoder, InputSize
from asterism.nn.heads import ProjectionHead, image_tokens
from asterism.nn.memory_bank import Memory
from asterism.ops.distillation import Distance, queue_distillation, resample_tokens, token_distance
from asterism.ops.losses import entropy
from asterism.ops.normalise import denormalise
from asterism.ops.patches import standardize
from asterism.ops.precision import at_least_float32
from asterism.ranges import AreaRange, Count, Few, Pixels, Positive, Share, Temperature
from asterism.types import Batch, Features, Losses, Progress, Tokens, ViewSpec

Metrics = dict[str, Float[Tensor, ""]]


class TokenTarget(Config):
    """Tokens of the teacher that the student predicts."""

    distance: Distance = "cosine"
    scale: Literal["plain", "standardised"] = "plain"  # standardised: each target with mean 0, variance 1 over channels
    weight: Positive = 1.0


class QueueTarget(Config):
    """Similarities to earlier images. SEED has 65 536 rows and the temperatures below; CompRess 128 000 rows, both
    temperatures 0.04, and no own target."""

    size: Count = 16384  # rows K, over all processes
    teacher_temp: Temperature = 0.01  # τ_T divides cosines
    student_temp: Temperature = 0.2  # τ_S
    own_target: bool = True  # whether the image's own target is a row of Q
    weight: Positive = 1.0


class DistillConfig(ColorsConfig):
    """Settings of the distillation. The student is the recipe's backbone."""

    name: Literal["distill"] = "distill"

    teacher: str = Field(
        default="vit_base_patch14_dinov2.lvd142m", min_length=1
    )  # a run, a weight file, a transformers folder or a timm name
    teacher_options: dict[str, Any] = Field(
        default_factory=dict
    )  # what the teacher's file does not say, as in asterism.load: {heads: 4}
    teacher_size: InputSize = "own"  # pixels per side of its input; view: that of the student's view
    cls: TokenTarget | None = TokenTarget()
    patches: TokenTarget | None = TokenTarget()
    queue: QueueTarget | None = None
    head_layers: Few = 1  # of the projections; 1: linear, so that features stay close to targets
    hidden_dim: Count = 2048  # of projections with several layers

    # The view, which both networks see
    image_size: Pixels | None = None  # pixels; None: the backbone's image size
    scale: AreaRange = (0.25, 1.0)  # area of the crop as a share of the image
    blur: Share = 0.1  # probability

    @model_validator(mode="after")
    def _needs_a_target(self) -> DistillConfig:
        if self.cls is None and self.patches is None and self.queue is None:
            raise ValueError("nothing to learn: set at least one of method.cls, method.patches and method.queue")
        return self


class Distill(Method):
    """The student with its projections, and the teacher, which is neither trained nor saved."""

    Config: ClassVar[type[MethodConfig]] = DistillConfig
    config: DistillConfig

    def __init__(self, config: DistillConfig, backbone: BackboneConfig) -> None:
        super().__init__(config, backbone)
        self.image_size = config.image_size or self.backbone.image_size
        if self.image_size % self.backbone.patch_size:
            raise UserError(
                f"method.image_size = {self.image_size} is not a multiple of the patch size {self.backbone.patch_size}"
            )
        self.teacher = FrozenEncoder(config.teacher, config.teacher_options, config.teacher_size, self.image_size)
        self.frozen_encoders = {"method.teacher": self.teacher}
        self.cls_head = self._projection() if config.cls is not None or config.queue is not None else None
        self.patch_head = self._projection() if config.patches is not None else None
        self.queue = None if config.queue is None else Memory(config.queue.size, self.teacher.dim)
        if config.queue is not None:
            self.uniform_terms = {"queue": math.log(config.queue.size + config.queue.own_target)}

    @property
    def views(self) -> tuple[ViewSpec, ...]:
        view = self.config.colored(ViewSpec(size=self.image_size, scale=self.config.scale))
        return (view.model_copy(update={"blur": self.config.blur}),)

    def loss(self, batch: Batch, progress: Progress) -> Losses:
        pixels = batch.views[0].pixels
        target = self.teacher(denormalise(pixels, self.mean, self.std))
        tokens = self.backbone(pixels, drop_keys=batch.keys)
        image = image_tokens([tokens])[0]

        terms, metrics = self.match_patches(tokens, target)
        if self.cls_head is not None:
            s = self.cls_head(image)
            metrics["cls_cosine"] = _mean_cosine(s, target.cls)
            if self.config.cls is not None:
                terms["cls"] = _token_loss(s, target.cls, self.config.cls)
            if self.config.queue is not None:
                terms["queue"], more = self.match_similarities(s, target.cls, batch.keys)
                metrics |= more
        return Losses(terms=terms, weights=self.term_weights, metrics=metrics, embeddings=image.detach())

    def match_patches(self, tokens: Tokens, target: Features) -> tuple[dict[str, Float[Tensor, ""]], Metrics]:
        """L_patches: every patch predicts the teacher's patch at its place."""
        if self.patch_head is None or self.config.patches is None:
            return {}, {}
        t = resample_tokens(target.patches, target.grid, tokens.grid)
        s = self.patch_head(tokens.patches)
        return {"patches": _token_loss(s, t, self.config.patches)}, {"patch_cosine": _mean_cosine(s, t)}

    def match_similarities(
        self, s: Float[Tensor, "b d"], t: Float[Tensor, "b d"], keys: Int[Tensor, " b"]
    ) -> tuple[Float[Tensor, ""], Metrics]:
        """L_queue against the rows from before this step; the step's own rows enter the queue after the update."""
        assert self.queue is not None
        assert self.config.queue is not None
        config = self.config.queue
        losses, p_T = queue_distillation(
            s,
            t,
            self.queue.rows,
            teacher_temp=config.teacher_temp,
            student_temp=config.student_temp,
            own_target=config.own_target,
        )
        self.queue.collect(nn.functional.normalize(at_least_float32(t), dim=-1), keys)
        loss, uncertainty = losses.mean(), entropy(p_T)
        return loss, {
            "queue_entropy": uncertainty,
            "queue_kl": loss.detach() - uncertainty,
            "queue_filled": self.queue.filled_share,
        }

    @property
    def term_weights(self) -> dict[str, float]:
        parts = {"cls": self.config.cls, "patches": self.config.patches, "queue": self.config.queue}
        return {name: part.weight for name, part in parts.items() if part is not None}

    def after_update(self, progress: Progress) -> None:
        if self.queue is not None:
            self.queue.store()

    def encoder(self) -> Encoder:
        """The student without its projections."""
        return Encoder(self.backbone, self.mean, self.std)

    def _projection(self) -> nn.Sequential:
        """From the student's width to the teacher's."""
        config = self.config
        return ProjectionHead(self.backbone.dim, config.hidden_dim, self.teacher.dim, config.head_layers).mlp


def _token_loss(
    student: Float[Tensor, "*rows d"], teacher: Float[Tensor, "*rows d"], target: TokenTarget
) -> Float[Tensor, ""]:
    """Mean distance over tokens and images."""
    if target.scale == "standardised":
        teacher, _, _ = standardize(at_least_float32(teacher.detach()))
    return token_distance(student, teacher, target.distance).mean()


@torch.no_grad()
def _mean_cosine(student: Float[Tensor, "*rows d"], teacher: Float[Tensor, "*rows d"]) -> Float[Tensor, ""]:
    return 1 - token_distance(student, teacher, "cosine").mean()
