"""STELLAR: sparse token extraction and localisation with low-rank approximated reconstruction.

An image is a few concepts and where they are. r latent queries pass through the encoder beside the patches and become
concepts S; each patch is spread over them (L). From L S alone a light decoder must make the image, so the concepts hold
all that is needed; what *kind* of thing each is, is learned by sorting the concepts of all images into a vocabulary of
prototypes that are used equally often, and by recognising the same concepts in views of which only a few patches can be
seen. Concepts have no order, so those of two views are first matched.

    E: S, U            backbone: registers and patches of the clean view; r = tokens
    L, t, W1, W2       localization                                                     (eq. 5)
    D(L S), X          reconstruction: pixels, or the codes of a tokenizer              (eq. 3)
    h, C               vocabulary: its projector and its prototypes                     (eq. 6)
    q, τ               predictions, prediction_temp                                     (eq. 7)
    q̃, τ̃              targets, target_temp; balanced by Sinkhorn and Knopp             (eq. 8)
    s', Θ, P, ε, σ     concepts of masked views, their distances to S, matching         (eq. 9, 10)
    L_cluster, L_align prototype cross-entropies of the clean and of the masked views   (eq. 8, 11)

Differs from the paper: the printed τ̃ > τ and the missing minus signs of equations 8 and 11 are read as the published
results need them, targets sharper than predictions and cross-entropies minimised. Colours change per image, not per
batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import torch
from jaxtyping import Float, Int
from pydantic import Field, model_validator
from torch import Tensor, nn

from asterism.config import Config
from asterism.errors import UserError
from asterism.methods._colors import ColorsConfig
from asterism.methods.base import Method, MethodConfig
from asterism.nn.backbone import BackboneConfig, encode_views
from asterism.nn.concepts import ConceptEncoder
from asterism.nn.encoder import Encoder
from asterism.nn.localization import Localization
from asterism.nn.reconstruction import (
    CodeReconstruction,
    ConceptDecoder,
    PixelReconstruction,
    Reconstruction,
    grid_mismatch,
)
from asterism.nn.teacher import Teacher
from asterism.nn.tokenizers.saved import load_tokenizer
from asterism.nn.vocabulary import Vocabulary
from asterism.ops import assignment, collectives
from asterism.ops.koleo import koleo
from asterism.ops.losses import entropy
from asterism.ops.masking import draw_focus, focus_noise, keep_count, keep_from_noise
from asterism.ops.pixels import denormalise
from asterism.ops.prototype_alignment import prototype_cross_entropy
from asterism.ops.random import fold_each, uniform
from asterism.types import Batch, Losses, Progress, Tokens, ViewSpec

Terms = dict[str, Float[Tensor, ""]]

_NOISE, _FOCUS = 0x51, 0x52  # tell the draws of masks from other uses of an image's key

CLEAN = 0  # the view that is encoded whole, clustered and reconstructed
TAUGHT = 2  # the second masked view, which the teacher of the warm-up sees whole


class ReconstructionConfig(Config):
    """The decoder (section 3.1) and what it predicts."""

    target: Literal["pixels", "codes"] = "pixels"
    tokenizer: str | None = None  # for codes: a `vq` run, or the file of a MaskGIT-VQGAN
    image_size: int | None = Field(default=None, gt=0)  # pixels per side that the tokenizer sees; None: the view's own
    weight: Annotated[float, Field(ge=0)] | Literal["auto"] = "auto"  # auto: 10 for pixels, 0.05 for codes
    decoder_dim: int = Field(default=512, gt=0)
    decoder_depth: int = Field(default=6, gt=0)  # blocks
    decoder_heads: int = Field(default=8, gt=0)

    @model_validator(mode="after")
    def _tokenizer_for_codes(self) -> ReconstructionConfig:
        if self.target == "codes" and self.tokenizer is None:
            raise ValueError(
                "target: codes needs a tokenizer: train one on your images with `asterism pretrain vq`, or give the "
                "file of the public MaskGIT-VQGAN"
            )
        if self.target == "pixels" and self.tokenizer is not None:
            raise ValueError("a tokenizer is given, but target: pixels does not use it; write target: codes")
        if self.target == "pixels" and self.image_size is not None:
            raise ValueError("image_size is what a tokenizer sees, and target: pixels has none; leave it out")
        return self

    @property
    def resolved_weight(self) -> float:
        published = 10.0 if self.target == "pixels" else 0.05
        return published if self.weight == "auto" else self.weight


class VocabularyConfig(Config):
    """Projector and prototypes of one kind of token (section 3.2)."""

    prototypes: int = Field(default=16384, gt=1)  # K
    hidden_dim: int = Field(default=2048, gt=0)
    bottleneck_dim: int = Field(default=256, gt=0)


class FocusConfig(Config):
    """Masks that leave neighbouring patches visible more often."""

    probability: float = Field(default=0.5, ge=0, le=1)
    sigma: tuple[float, float] = (0.1, 0.5)  # width of the bell as a share of the grid's side

    @model_validator(mode="after")
    def _a_range(self) -> FocusConfig:
        if not 0 < self.sigma[0] <= self.sigma[1]:
            raise ValueError(f"sigma = {list(self.sigma)} must be two rising numbers above 0")
        return self


class WarmupConfig(Config):
    """Training from scratch begins with targets of a teacher that averages the student's past (appendix B.1)."""

    share: float = Field(default=2 / 3, gt=0, le=1)  # of the run's steps: 150 of 225 epochs
    momentum: float = Field(default=0.996, ge=0, le=1)
    mask_ratio: float = Field(default=0.6, gt=0, lt=1)


class Weights(Config):
    """Weights of the loss terms; a term of weight 0 is not computed. That of the reconstruction is with its decoder."""

    cluster: float = Field(default=1.0, ge=0)
    align: float = Field(default=1.0, ge=0)
    cls_cluster: float = Field(default=1.0, ge=0)
    cls_masked: float = Field(default=1.0, ge=0)
    cls_local: float = Field(default=1.0, ge=0)
    koleo: float = Field(default=0.1, ge=0)  # of the clean view's concepts
    koleo_masked: float = Field(default=0.1, ge=0)

    @property
    def uses_classes(self) -> bool:
        return self.cls_cluster > 0 or self.cls_masked > 0 or self.cls_local > 0


class StellarConfig(ColorsConfig):
    """Settings of STELLAR; the defaults are those of the published ViT-B/16. Temperatures divide logits."""

    name: Literal["stellar"] = "stellar"

    tokens: int = Field(default=16, gt=0)  # r, concepts per image
    localization_temp: float = Field(default=0.06, gt=0)  # t
    reconstruction: ReconstructionConfig | None = ReconstructionConfig()

    # Views: sizes in pixels, scales as shares of the image's area
    global_size: int | None = Field(default=None, gt=0)  # None: the backbone's image size
    global_scale: tuple[float, float] = (0.36, 1.0)
    masked_views: int = Field(default=8, ge=0)
    mask_ratio: float = Field(default=0.8, gt=0, lt=1)  # share of patches that masked views lack
    focus: FocusConfig | None = FocusConfig()
    local_views: int = Field(default=8, ge=0)  # only their class tokens are used
    local_size: int | None = Field(default=None, gt=0)  # None: 3/7 of the global size (96 of 224), in whole patches
    local_scale: tuple[float, float] = (0.06, 0.36)

    # Concepts (sections 3.2 and 3.3)
    vocabulary: VocabularyConfig = VocabularyConfig()
    class_vocabulary: VocabularyConfig | None = VocabularyConfig()  # None: no class branch
    target_temp: float = Field(default=0.06, gt=0)  # τ̃
    prediction_temp: float = Field(default=0.12, gt=0)  # τ
    sinkhorn_iterations: int = Field(default=3, gt=0)
    matching: Literal["transport", "hungarian"] = "transport"  # entropic and parallel, or exact and slow (table 12)
    match_epsilon: float = Field(default=0.1, gt=0)  # ε
    match_iterations: int = Field(default=5, gt=0)

    weights: Weights = Weights()
    warmup: WarmupConfig | None = None  # None: the published default, a backbone that starts from MAE

    @property
    def needs_whole_batch(self) -> str | None:
        weights = self.weights
        if weights.cluster or weights.align or (self.class_vocabulary is not None and weights.uses_classes):
            return "the balanced targets of STELLAR share out prototypes among all images of the batch"
        return None


class Stellar(Method):
    """Encoder, decoder and vocabularies, and a teacher where training starts from scratch."""

    Config: ClassVar[type[MethodConfig]] = StellarConfig
    config: StellarConfig

    def __init__(self, config: StellarConfig, backbone: BackboneConfig) -> None:
        _check_registers(config, backbone)
        super().__init__(config, backbone.model_copy(update={"registers": config.tokens}))
        dim = self.backbone.dim
        self.localization = Localization(dim, config.localization_temp)
        self.vocabulary = _vocabulary(dim, config.vocabulary)
        self.class_vocabulary = None if config.class_vocabulary is None else _vocabulary(dim, config.class_vocabulary)
        self.reconstruction = self._reconstruction()
        self._check()
        for part, used in self._parts_in_use():
            part.requires_grad_(used)  # several processes wait for the gradient of every trained parameter
        if config.warmup is not None:
            # Differs from the paper: the teacher's localisation is never used, so the teacher has none.
            self.teacher_backbone = Teacher(self.backbone)
            self.teacher_vocabulary = Teacher(self.vocabulary)
            if self.class_vocabulary is not None:
                self.teacher_class_vocabulary = Teacher(self.class_vocabulary)

    @property
    def views(self) -> tuple[ViewSpec, ...]:
        config, patch = self.config, self.backbone.patch_size
        small = config.local_size or max(patch, round(self.global_size * 3 / 7 / patch) * patch)
        clean = ViewSpec(size=self.global_size, scale=config.global_scale)
        masked = config.colored(clean).model_copy(update={"blur": 0.5})
        first = masked.model_copy(update={"same_place": CLEAN})
        local = masked.model_copy(update={"size": small, "scale": config.local_scale})
        return (clean, *[first, *[masked] * self.masked_views][: self.masked_views], *[local] * self.local_views)

    def loss(self, batch: Batch, progress: Progress) -> Losses:
        warmup = self.config.warmup if self.is_warming_up(progress) else None
        ratio = self.config.mask_ratio if warmup is None else warmup.mask_ratio
        taught = None if warmup is None else self.teacher_backbone(batch.views[TAUGHT].pixels)
        return self.losses(batch, self.visible(batch.keys, ratio), taught)

    def losses(self, batch: Batch, keep: Sequence[Int[Tensor, "b m"]], taught: Tokens | None) -> Losses:
        """The loss terms, given the visible patches of each masked view and, in the warm-up, the teacher's tokens."""
        _check_batch(len(batch.keys))
        clean, masked, local = self.encode(batch, keep)
        rebuilt, quality = self.reconstruction_terms(clean, batch.views[CLEAN].pixels)
        concepts, metrics = self.concept_terms(clean, masked, taught)
        return Losses(
            terms={
                **rebuilt,
                **concepts,
                **self.class_terms(clean, masked, local, taught),
                **self.spread_terms(clean, masked),
            },
            weights=self.term_weights,
            metrics={**quality, **metrics},
            embeddings=clean.registers.detach().float().mean(dim=1),
        )

    def visible(self, keys: Int[Tensor, " b"], ratio: float) -> list[Int[Tensor, "b m"]]:
        """The patches that each masked view keeps, drawn for each image from its key."""
        side, focus = self.global_size // self.backbone.patch_size, self.config.focus
        kept = []
        for view in range(self.masked_views):
            noise = uniform(fold_each(keys, _NOISE, view), side * side)
            if focus is not None:
                drawn = draw_focus(fold_each(keys, _FOCUS, view), (side, side), focus.probability, focus.sigma)
                noise = focus_noise(noise, (side, side), drawn)
            kept.append(keep_from_noise(noise, ratio))
        return kept

    def encode(
        self, batch: Batch, keep: Sequence[Int[Tensor, "b m"]]
    ) -> tuple[Tokens, Sequence[Tokens], Sequence[Tokens]]:
        """Tokens of the clean view, of the masked views and of the local ones: one forward pass each."""
        pixels = [view.pixels for view in batch.views]
        keys = [fold_each(batch.keys, number) for number in range(len(pixels))]
        kept = [None, *keep, *[None] * (len(pixels) - 1 - len(keep))]
        clean, *others = encode_views(self.backbone, pixels, keep=kept, drop_keys=keys)
        return clean, others[: len(keep)], others[len(keep) :]

    def reconstruction_terms(self, clean: Tokens, pixels: Float[Tensor, "b 3 h w"]) -> tuple[Terms, Terms]:
        """The image from its concepts and their places (eq. 3)."""
        if self.reconstruction is None:
            return {}, {}
        mixed = self.localization(clean.patches, clean.registers) @ clean.registers
        images = denormalise(pixels, self.mean, self.std)
        loss, quality = self.reconstruction.loss(mixed, clean.grid, images)
        return {"reconstruction": loss}, {self.reconstruction.metric: quality}

    def concept_terms(self, clean: Tokens, masked: Sequence[Tokens], taught: Tokens | None) -> tuple[Terms, Terms]:
        """Clustering of the clean view's concepts and alignment of the masked views' with them (eq. 6 to 11)."""
        config, weights = self.config, self.config.weights
        if not weights.cluster and not weights.align:
            return {}, {}
        concepts = torch.stack([view.registers for view in (clean, *masked)], dim=1)
        embeddings = self.vocabulary(concepts)
        if taught is None:
            anchors, logits = concepts[:, 0], self.vocabulary.logits(embeddings[:, 0].flatten(0, 1))
            own = torch.arange(config.tokens, device=anchors.device).expand(len(anchors), 1, -1)
        else:
            teacher, anchors = self.teacher_vocabulary.network, taught.registers
            logits = teacher.logits(self.teacher_vocabulary(anchors).flatten(0, 1))
            own = self.match(concepts[:, :1], anchors)
        targets = assignment.sinkhorn_knopp(logits, config.target_temp, config.sinkhorn_iterations)

        first = config.tokens * torch.arange(len(concepts), device=concepts.device)[:, None, None]
        terms = {}
        metrics = {"target_entropy": entropy(targets), "prototypes_in_use": _distinct_share(targets.argmax(dim=1))}
        if weights.cluster:
            terms["cluster"] = self._cross_entropy(self.vocabulary, embeddings[:, :1], targets, own + first)
        if weights.align and masked:
            sigma = self.match(concepts[:, 1:], anchors)
            terms["align"] = self._cross_entropy(self.vocabulary, embeddings[:, 1:], targets, sigma + first)
            metrics["matched"] = _reached_share(sigma, config.tokens)
        return terms, metrics

    def class_terms(
        self, clean: Tokens, masked: Sequence[Tokens], local: Sequence[Tokens], taught: Tokens | None
    ) -> Terms:
        """The class token as one more concept, with a vocabulary of its own and nothing to be matched."""
        config, weights, vocabulary = self.config, self.config.weights, self.class_vocabulary
        end = 1 + len(masked)
        parts = {"cls_cluster": slice(0, 1), "cls_masked": slice(1, end), "cls_local": slice(end, None)}
        if vocabulary is None or not any(getattr(weights, name) for name in parts):
            return {}
        embeddings = vocabulary(torch.stack([_class_token(view) for view in (clean, *masked, *local)], dim=1))
        if taught is None:
            logits = vocabulary.logits(embeddings[:, 0])
        else:
            teacher = self.teacher_class_vocabulary
            logits = teacher.network.logits(teacher(_class_token(taught)))
        targets = assignment.sinkhorn_knopp(logits, config.target_temp, config.sinkhorn_iterations)
        which = torch.arange(len(embeddings), device=embeddings.device)[:, None].expand(embeddings.shape[:2])
        return {
            name: self._cross_entropy(vocabulary, embeddings[:, part], targets, which[:, part])
            for name, part in parts.items()
            if getattr(weights, name) and embeddings[:, part].numel()
        }

    def spread_terms(self, clean: Tokens, masked: Sequence[Tokens]) -> Terms:
        """KoLeo: the concepts of one image keep their distance from each other."""
        weights, terms = self.config.weights, {}
        if weights.koleo:
            terms["koleo"] = koleo(clean.registers)
        if weights.koleo_masked and masked:
            terms["koleo_masked"] = koleo(torch.cat([view.registers for view in masked]))
        return terms

    def match(self, source: Float[Tensor, "b v r d"], target: Float[Tensor, "b r d"]) -> Int[Tensor, "b v r"]:
        """σ: for each concept of each view the same image's concept that it stands for (eq. 9 and 10)."""
        config = self.config
        cost = assignment.distances(source.detach(), target.detach()[:, None])
        if config.matching == "hungarian":
            return assignment.hungarian(cost)
        return assignment.transport_plan(cost, config.match_epsilon, config.match_iterations).argmax(dim=-1)

    def is_warming_up(self, progress: Progress) -> bool:
        """Whether the teacher gives the targets of this step."""
        return self.config.warmup is not None and progress.step < self.config.warmup.share * progress.steps

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
        return ConceptEncoder(
            self.backbone, self.localization, self.reconstruction, self.mean, self.std, self.global_size
        )

    @property
    def global_size(self) -> int:
        return self.config.global_size or self.backbone.image_size

    @property
    def local_views(self) -> int:
        used = self.class_vocabulary is not None and self.config.weights.cls_local > 0
        return self.config.local_views if used else 0

    @property
    def masked_views(self) -> int:
        weights = self.config.weights
        used = weights.align or weights.koleo_masked or (weights.cls_masked and self.class_vocabulary is not None)
        return self.config.masked_views if used else 0

    def _parts_in_use(self) -> list[tuple[nn.Module, bool]]:
        """The parts beside backbone and decoder, and whether a term of the loss reaches them."""
        weights = self.config.weights
        concepts = weights.cluster or (weights.align and self.masked_views)
        parts: list[tuple[nn.Module, bool]] = [
            (self.localization, self.reconstruction is not None),
            (self.vocabulary, bool(concepts)),
        ]
        if self.class_vocabulary is not None:
            classes = weights.cls_cluster or (weights.cls_masked and self.masked_views) or self.local_views
            parts.append((self.class_vocabulary, bool(classes)))
        return parts

    @property
    def term_weights(self) -> dict[str, float]:
        weights = self.config.weights.model_dump()
        if self.config.reconstruction is not None:
            weights["reconstruction"] = self.config.reconstruction.resolved_weight
        return weights

    def _cross_entropy(
        self,
        vocabulary: Vocabulary,
        embeddings: Float[Tensor, "*views p"],
        targets: Float[Tensor, "m k"],
        which: Int[Tensor, "*views"],
    ) -> Float[Tensor, ""]:
        rows = embeddings.reshape(-1, embeddings.shape[-1])
        return prototype_cross_entropy(
            rows, vocabulary.prototypes, targets, which.flatten(), self.config.prediction_temp
        )

    def _reconstruction(self) -> Reconstruction | None:
        config = self.config.reconstruction
        if config is None:
            return None
        decoder = ConceptDecoder(self.backbone.dim, config.decoder_dim, config.decoder_depth, config.decoder_heads)
        if config.tokenizer is None:
            return PixelReconstruction(decoder, self.backbone.patch_size)
        tokenizer = load_tokenizer(config.tokenizer)
        patches, codes = self.global_size // self.backbone.patch_size, (config.image_size or self.global_size)
        if codes % tokenizer.factor or codes // tokenizer.factor != patches:
            seen = codes // tokenizer.factor
            raise grid_mismatch((patches, patches), (seen, seen), tokenizer.factor)
        return CodeReconstruction(decoder, tokenizer.vocabulary, tokenizer, config.image_size)

    def _check(self) -> None:
        """Refuse what cannot work, with the setting to change."""
        config, backbone = self.config, self.backbone
        in_use = any(used for _, used in self._parts_in_use())
        spread = config.weights.koleo or (config.weights.koleo_masked and self.masked_views)
        if not in_use and not spread:
            raise UserError("every term of the loss is off; give method.reconstruction or some of method.weights")
        if config.masked_views == 0 and config.weights.align:
            raise UserError(
                "method.masked_views = 0 leaves nothing to align; raise it, or switch the term off by "
                "method.weights.align=0"
            )
        if not backbone.takes_masks:
            raise UserError("stellar needs a backbone that can skip patches: choose a timm vit_*")
        if config.class_vocabulary is not None and not backbone.has_cls:
            raise UserError(
                "method.class_vocabulary is for class tokens, which the backbone lacks; set it to null, or set "
                "backbone.class_token=true"
            )
        side, patch = self.global_size // backbone.patch_size, backbone.patch_size
        if side * patch != self.global_size:
            raise UserError(f"method.global_size = {self.global_size} is no multiple of the patch size {patch}")
        if config.local_size is not None and (config.local_size < patch or config.local_size % patch):
            raise UserError(f"method.local_size = {config.local_size} is no multiple of the patch size {patch}")
        if config.tokens > side * side:
            raise UserError(
                f"method.tokens = {config.tokens} concepts for {side * side} patches; use fewer, or smaller patches"
            )
        if config.tokens > config.vocabulary.prototypes:
            raise UserError(
                f"method.tokens = {config.tokens} is more than method.vocabulary.prototypes = "
                f"{config.vocabulary.prototypes}: balanced targets could not tell the concepts of one image apart; "
                "lower the first, or raise the second"
            )
        if config.tokens < 2 and (config.weights.koleo or config.weights.koleo_masked):
            raise UserError(
                "a single concept has no other to keep its distance from; set method.weights.koleo=0 and "
                "method.weights.koleo_masked=0"
            )
        ratios = {"method.mask_ratio": config.mask_ratio}
        if config.warmup is not None:
            ratios["method.warmup.mask_ratio"] = config.warmup.mask_ratio
            if self.masked_views < TAUGHT:
                raise UserError(
                    f"method.warmup lets a teacher see the second masked view, but {self.masked_views} are in use; "
                    "raise method.masked_views, and keep a term that uses them (align, cls_masked or koleo_masked)"
                )
        for name, ratio in ratios.items():
            if keep_count(side * side, ratio) == 0:
                raise UserError(f"{name} = {ratio} leaves none of {side * side} patches; lower it")


def _vocabulary(dim: int, config: VocabularyConfig) -> Vocabulary:
    return Vocabulary(dim, config.prototypes, config.hidden_dim, config.bottleneck_dim)


def _class_token(tokens: Tokens) -> Float[Tensor, "b d"]:
    assert tokens.cls is not None
    return tokens.cls


def _distinct_share(prototypes: Int[Tensor, " rows"]) -> Float[Tensor, ""]:
    """How many different prototypes the tokens prefer, per token."""
    return torch.tensor(len(torch.unique(prototypes)) / len(prototypes), device=prototypes.device)


def _reached_share(sigma: Int[Tensor, "b v r"], tokens: int) -> Float[Tensor, ""]:
    """Share of an image's concepts that some concept of a view was matched with: 1 when one-to-one."""
    reached = torch.zeros(*sigma.shape[:2], tokens, device=sigma.device).scatter_(2, sigma, 1.0)
    return reached.mean()


def _check_registers(config: StellarConfig, backbone: BackboneConfig) -> None:
    if backbone.registers not in (None, 0, config.tokens):
        raise UserError(
            f"backbone.registers = {backbone.registers}, but in STELLAR the registers are the concepts: leave it out, "
            f"or set it to method.tokens = {config.tokens}"
        )


def _check_batch(images: int) -> None:
    everywhere = images * collectives.world_size()
    if everywhere < 2:
        raise UserError(
            f"a batch of {everywhere} image is too small for balanced targets, which share out prototypes among all "
            "images of all devices; raise trainer.batch_size, or lower trainer.accumulate, which does not help here"
        )
