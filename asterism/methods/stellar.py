"""STELLAR: sparse token extraction and localisation with low-rank approximated reconstruction.

An image is represented by a few concepts and their locations. r latent queries pass through the encoder together with
the patches and become concepts S; each patch is divided among them (L). A light decoder must reconstruct the image from
L S alone, so the concepts contain all that is needed. Semantics are learned by assigning the concepts of all images to
a vocabulary of prototypes that are used equally often, and by recognising the same concepts in views with only a few
visible patches. Concepts are unordered, so those of two views are first matched.

    E: S, U            backbone: registers and patches of the clean view; r = tokens
    L, t, W1, W2       localization                                                     (eq. 5)
    D(L S), X          reconstruction: pixels, or the codes of a tokenizer              (eq. 3)
    h, C               vocabulary: its projector and its prototypes                     (eq. 6)
    q, τ               predictions, alignment.prediction_temp                           (eq. 7)
    q̃, τ̃              q_tilde, alignment.target_temp; balanced by Sinkhorn and Knopp   (eq. 8)
    S', Θ, P, ε, σ     concepts of masked views, their distances to S, matching         (eq. 9, 10)
    L_cluster, L_align prototype cross-entropies of the clean and of the masked views   (eq. 8, 11)

Equations 6 to 11 are `asterism.ops.concept_alignment.align_concepts`.

Differs from the paper, as the published code does: targets are sharper than predictions (the paper prints τ̃ > τ) and
cross-entropies are minimised (equations 8 and 11 lack a minus sign); W1 and W2 have biases; the transport plan has
marginals 1, not 1/r; class tokens have a vocabulary, KoLeo spreads the concepts of clean and masked views, and masks
have a focus, with the weights of `Weights`.

Differs from the published code: colours change per image, not per batch; the teacher is updated after a step instead of
before the next one, which gives the student the same trajectory, and validation batches do not update it. The published
network has a position for the class token, layer norms with epsilon 1e-12 and positions resampled without antialiasing;
its optimiser has a constant learning rate and decays every parameter. All of these are settings of backbone and optim,
and the recipes `stellar-imagenet-*` set them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from asterism.config import Config
from asterism.methods.base import Method, MethodConfig
from asterism.methods.parts.stellar_refusals import (
    refuse_a_single_image,
    refuse_other_registers,
    refuse_what_cannot_work,
)
from asterism.methods.parts.views import ColorsConfig, usual_local_size
from asterism.nn.backbone import BackboneConfig, encode_views
from asterism.nn.concepts import ConceptEncoder, build_reconstruction
from asterism.nn.encoder import Encoder
from asterism.nn.localization import Localization, LocalizationConfig
from asterism.nn.needed_outputs import NeededPatches
from asterism.nn.reconstruction import Reconstruction, ReconstructionConfig
from asterism.nn.teacher import Teacher
from asterism.nn.vocabulary import Vocabulary, VocabularyConfig
from asterism.ops import streams
from asterism.ops.concept_alignment import (
    AlignmentConfig,
    Concepts,
    align_concepts,
    balanced_targets,
    class_cross_entropy,
)
from asterism.ops.koleo import koleo
from asterism.ops.masking import FocusConfig, MaskDraw, draw_focus
from asterism.ops.normalise import denormalise
from asterism.ops.random import fold_each, uniform
from asterism.ranges import AreaRange, Count, FewFromZero, InnerShare, NonNegative, Pixels, PositiveShare, Share
from asterism.types import Batch, Losses, Progress, Tokens, ViewSpec


class Weights(Config):
    """Weights of the loss terms; 0 leaves a term out. The reconstruction's weight is in its own settings."""

    cluster: NonNegative = 1.0
    align: NonNegative = 1.0
    cls_cluster: NonNegative = 1.0
    cls_masked: NonNegative = 1.0
    cls_local: NonNegative = 1.0
    koleo: NonNegative = 0.1  # of the clean view's concepts
    koleo_masked: NonNegative = 0.1


@dataclass(frozen=True)
class Needs:
    """What the terms in use need. Other views are not made, and parameters that no term uses are not trained."""

    masked_views: int
    local_views: int
    vocabulary: bool
    class_vocabulary: bool


def needs_of(config: StellarConfig) -> Needs:
    weights, classes = config.weights, config.class_vocabulary is not None
    reads_masked = weights.align or weights.koleo_masked or (classes and weights.cls_masked)
    masked = config.masked_views if reads_masked else 0
    local = config.local_views if classes and weights.cls_local else 0
    return Needs(
        masked_views=masked,
        local_views=local,
        vocabulary=bool(weights.cluster or (weights.align and masked)),
        class_vocabulary=classes and bool(weights.cls_cluster or (weights.cls_masked and masked) or local),
    )


Terms = dict[str, Float[Tensor, ""]]


class WarmupConfig(Config):
    """Training from scratch starts with targets from a momentum encoder (appendix B.1)."""

    share: PositiveShare = 2 / 3  # of the run's steps: 150 of 225 epochs
    momentum: Share = 0.996
    mask_ratio: InnerShare = 0.6


class StellarConfig(ColorsConfig):
    """Settings of STELLAR; the defaults are those of the published ViT-B/16."""

    name: Literal["stellar"] = "stellar"

    tokens: Count = 16  # r, concepts per image
    localization: LocalizationConfig = LocalizationConfig()
    reconstruction: ReconstructionConfig | None = ReconstructionConfig()  # None: concepts have no locations either
    vocabulary: VocabularyConfig = VocabularyConfig()
    class_vocabulary: VocabularyConfig | None = VocabularyConfig()  # None: no class branch
    alignment: AlignmentConfig = AlignmentConfig()
    weights: Weights = Weights()
    warmup: WarmupConfig | None = None  # None: the published default, a backbone that starts from MAE

    # Views: sizes in pixels, scales as shares of the image's area
    global_size: Pixels | None = None  # None: the backbone's image size
    global_scale: AreaRange = (0.36, 1.0)
    masked_views: FewFromZero = 8
    mask_ratio: InnerShare = 0.8  # share of patches removed from masked views
    focus: FocusConfig | None = FocusConfig()
    local_views: FewFromZero = 8  # only their class tokens are used
    local_size: Pixels | None = None  # None: 3/7 of the global size (96 of 224), in whole patches
    local_scale: AreaRange = (0.06, 0.36)

    @property
    def needs_whole_batch(self) -> str | None:
        needs = needs_of(self)
        if needs.vocabulary or needs.class_vocabulary:
            return "the balanced targets of STELLAR divide prototypes among all images of the batch"
        return None


class Stellar(Method):
    """Encoder, decoder and vocabularies, and a teacher if training starts from scratch."""

    Config: ClassVar[type[MethodConfig]] = StellarConfig
    config: StellarConfig

    def __init__(self, config: StellarConfig, backbone: BackboneConfig) -> None:
        refuse_other_registers(config, backbone)
        super().__init__(config, backbone.model_copy(update={"registers": config.tokens}))
        dim, patch = self.backbone.dim, self.backbone.patch_size
        self.needs = needs_of(config)
        self.localization: Localization | None = None  # trained by the reconstruction alone
        self.reconstruction: Reconstruction | None = None
        if config.reconstruction is not None:
            self.localization = Localization(dim, config.localization.temperature)
        self.vocabulary = Vocabulary(dim, config.vocabulary)
        self.class_vocabulary = None if config.class_vocabulary is None else Vocabulary(dim, config.class_vocabulary)
        if config.reconstruction is not None:
            self.reconstruction = build_reconstruction(config.reconstruction, dim, patch, self.global_size)
        refuse_what_cannot_work(self)
        # Processes wait for the gradient of every trainable parameter, so parameters that no term uses are frozen.
        self.vocabulary.requires_grad_(self.needs.vocabulary)
        if self.class_vocabulary is not None:
            self.class_vocabulary.requires_grad_(self.needs.class_vocabulary)
        if config.warmup is not None:
            # Differs from the paper: the teacher's localisation is never used, so the teacher has none.
            self.teacher_backbone = Teacher(self.backbone)
            self.teacher_vocabulary = Teacher(self.vocabulary)
            if self.class_vocabulary is not None:
                self.teacher_class_vocabulary = Teacher(self.class_vocabulary)

    @property
    def views(self) -> tuple[ViewSpec, ...]:
        config, masked_views = self.config, self.needs.masked_views
        small = config.local_size or usual_local_size(self.global_size, self.backbone.patch_size)
        clean = ViewSpec(size=self.global_size, scale=config.global_scale)
        masked = config.colored(clean).model_copy(update={"blur": 0.5})
        first = masked.model_copy(update={"same_place": 0})  # same crop as the clean view
        local = masked.model_copy(update={"size": small, "scale": config.local_scale})
        return (clean, *[first, *[masked] * masked_views][:masked_views], *[local] * self.needs.local_views)

    def loss(self, batch: Batch, progress: Progress) -> Losses:
        return self.losses(batch, self.draw_masks(batch.keys), progress)

    def losses(self, batch: Batch, masks: Sequence[MaskDraw], progress: Progress) -> Losses:
        """The loss terms in the order of the equations, given the random draws of the masks."""
        refuse_a_single_image(len(batch.keys))
        clean, masked, local = self.encode(batch, masks, self.mask_ratio(progress))
        taught = self.teach(batch) if self.is_warming_up(progress) else None
        image = denormalise(batch.views[0].pixels, self.mean, self.std)

        reconstruction, quality = self.reconstruct(clean, image)  # eq. 3 and 5
        concepts, usage = self.cluster_and_align(clean, masked, taught)  # eq. 6 to 11
        classes = self.cluster_and_align_classes(clean, masked, local, taught)
        spread = self.spread(clean, masked)
        return Losses(
            terms=reconstruction | concepts | classes | spread,
            weights=self.term_weights,
            metrics=quality | usage,
            embeddings=clean.registers.detach().float().mean(dim=1),
        )

    def draw_masks(self, keys: Int[Tensor, " b"]) -> list[MaskDraw]:
        """The random numbers behind each view's masks, drawn for each image from its key."""
        rows, columns = grid = self.grid
        masks = []
        for view in range(self.needs.masked_views):
            noise, focus = uniform(fold_each(keys, streams.Stellar.NOISE, view), rows * columns), None
            if self.config.focus is not None:
                focus = draw_focus(fold_each(keys, streams.Stellar.FOCUS, view), grid, self.config.focus)
            masks.append(MaskDraw(noise, focus))
        return masks

    def encode(
        self, batch: Batch, masks: Sequence[MaskDraw], ratio: float
    ) -> tuple[Tokens, Sequence[Tokens], Sequence[Tokens]]:
        """E: tokens of the clean view, of the masked views and of the local ones; one forward pass each."""
        pixels = [view.pixels for view in batch.views]
        keep = [None, *[mask.keep(self.grid, ratio) for mask in masks], *[None] * self.needs.local_views]
        drop_keys = [fold_each(batch.keys, number) for number in range(len(pixels))]
        # Only the reconstruction uses patches, those of the clean view.
        needed: list[NeededPatches] = ["none" for _ in pixels]
        if self.reconstruction is not None:
            needed[0] = "all"
        clean, *others = encode_views(self.backbone, pixels, keep=keep, drop_keys=drop_keys, needed=needed)
        return clean, others[: len(masks)], others[len(masks) :]

    def teach(self, batch: Batch) -> Tokens:
        """The teacher's tokens of the second masked view, of which it sees all patches."""
        _clean, _first, second, *_ = batch.views
        return self.teacher_backbone(second.pixels, needed="none")

    def reconstruct(self, clean: Tokens, X: Float[Tensor, "b 3 h w"]) -> tuple[Terms, Terms]:
        """D(L S) against the image X: concepts and their locations must suffice (eq. 3 and 5)."""
        if self.reconstruction is None or self.localization is None:
            return {}, {}
        S, U = clean.registers, clean.patches
        L = self.localization(U, S)
        loss, quality = self.reconstruction.loss(L @ S, clean.grid, X)
        return {"reconstruction": loss}, {self.reconstruction.metric: quality}

    def cluster_and_align(
        self, clean: Tokens, masked: Sequence[Tokens], taught: Tokens | None
    ) -> tuple[Terms, dict[str, Float[Tensor, ""]]]:
        """L_cluster of the clean view's concepts and L_align of the masked views' (eq. 6 to 11)."""
        if not self.needs.vocabulary:
            return {}, {}
        weights, C, teacher = self.config.weights, self.vocabulary.prototypes, None
        S = torch.stack([view.registers for view in (clean, *masked)], dim=1)
        h = self.vocabulary(S)
        if taught is not None:
            seen = Concepts(taught.registers, self.teacher_vocabulary(taught.registers))
            teacher = (seen, self.teacher_vocabulary.network.prototypes)
        others = Concepts(S[:, 1:], h[:, 1:]) if masked and weights.align else None
        alignment = align_concepts(Concepts(S[:, 0], h[:, 0]), others, C, self.config.alignment, teacher)
        terms = {"cluster": alignment.cluster} if weights.cluster else {}
        if alignment.align is not None:
            terms["align"] = alignment.align
        return terms, alignment.usage()

    def cluster_and_align_classes(
        self, clean: Tokens, masked: Sequence[Tokens], local: Sequence[Tokens], taught: Tokens | None
    ) -> Terms:
        """The class token as one more concept, with its own vocabulary and no matching."""
        config, vocabulary = self.config, self.class_vocabulary
        if vocabulary is None or not self.needs.class_vocabulary:
            return {}
        h = vocabulary(torch.stack([_class_token(view) for view in (clean, *masked, *local)], dim=1))
        if taught is None:
            q_tilde = balanced_targets(h[:, 0], vocabulary.prototypes, config.alignment)
        else:
            teacher = self.teacher_class_vocabulary
            q_tilde = balanced_targets(teacher(_class_token(taught)), teacher.network.prototypes, config.alignment)
        parts = zip(
            ("cls_cluster", "cls_masked", "cls_local"), h.split([1, len(masked), len(local)], dim=1), strict=True
        )
        return {
            name: class_cross_entropy(part, vocabulary.prototypes, q_tilde, config.alignment.prediction_temp)
            for name, part in parts
            if getattr(config.weights, name) and part.shape[1]
        }

    def spread(self, clean: Tokens, masked: Sequence[Tokens]) -> Terms:
        """KoLeo: spreads the concepts of each image apart."""
        weights, terms = self.config.weights, {}
        if weights.koleo:
            terms["koleo"] = koleo(clean.registers)
        if weights.koleo_masked and masked:
            terms["koleo_masked"] = koleo(torch.cat([view.registers for view in masked]))
        return terms

    def is_warming_up(self, progress: Progress) -> bool:
        """Whether the teacher provides the targets of this step."""
        return self.config.warmup is not None and progress.step < self.config.warmup.share * progress.steps

    def mask_ratio(self, progress: Progress) -> float:
        warmup = self.config.warmup if self.is_warming_up(progress) else None
        return self.config.mask_ratio if warmup is None else warmup.mask_ratio

    def after_update(self, progress: Progress) -> None:
        if self.config.warmup is not None and self.is_warming_up(progress):
            momentum = self.config.warmup.momentum
            self.teacher_backbone.update(self.backbone, momentum)
            self.teacher_vocabulary.update(self.vocabulary, momentum)
            if self.class_vocabulary is not None:
                self.teacher_class_vocabulary.update(self.class_vocabulary, momentum)

    def backbone_was_loaded(self) -> None:
        if self.config.warmup is not None:
            self.teacher_backbone.update(self.backbone, momentum=0.0)

    def encoder(self) -> Encoder:
        parts = (self.backbone, self.localization, self.reconstruction)
        return ConceptEncoder(*parts, self.mean, self.std, self.global_size)

    @property
    def global_size(self) -> int:
        return self.config.global_size or self.backbone.image_size

    @property
    def grid(self) -> tuple[int, int]:
        """Patches of a clean or masked view."""
        side = self.global_size // self.backbone.patch_size
        return side, side

    @property
    def term_weights(self) -> dict[str, float]:
        weights = self.config.weights.model_dump()
        if self.config.reconstruction is not None:
            weights["reconstruction"] = self.config.reconstruction.resolved_weight
        return weights


def _class_token(tokens: Tokens) -> Float[Tensor, "b d"]:
    assert tokens.cls is not None
    return tokens.cls
