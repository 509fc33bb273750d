"""Alignment as a kind of run: captioned images, a frozen encoder, and a probe in the space of texts."""

from __future__ import annotations

import torch
from lightning_fabric import Fabric

from asterism.errors import UserError
from asterism.extras.words.aligned import Alignment
from asterism.extras.words.attention_pooling import AttentionPooling, chosen_tokens, usual_heads
from asterism.extras.words.job import AlignmentJob
from asterism.extras.words.pairs import make_pairs, training_sentences
from asterism.extras.words.recipe import AlignRecipe
from asterism.extras.words.run import AlignedRun, open_aligned
from asterism.extras.words.sources.captioned import Captioned
from asterism.extras.words.sources.captions import open_captions
from asterism.extras.words.towers.build import build_tower
from asterism.nn.concepts import ConceptEncoder
from asterism.nn.encoder import Encoder
from asterism.nn.learner import trained_parameters
from asterism.nn.weights.load import load_encoder
from asterism.train.kind import Init, Kind, Opened
from asterism.train.recipe import TrainerConfig
from asterism.train.resolve import resolved_trainer

_BATCH = 512  # pairs; negatives are free when features are cached
_EPOCHS = 30.0


class OpenedAlignment(Opened[AlignRecipe, AlignedRun]):
    """The captioned images, the frozen encoder of the source or of the run, and a probe and a tower on top of it."""

    source: Captioned

    def __init__(self, recipe: AlignRecipe, init: Init | None = None, run: AlignedRun | None = None) -> None:
        self.source = open_captions(recipe.data.path, recipe.data.split)
        if run is not None and run.weights.is_file():
            encoder = load_encoder(run.path)
        else:
            encoder = load_encoder(recipe.source.path, **recipe.source.options)
        self.encoder = encoder.requires_grad_(False).eval()
        self.recipe = _probed(recipe, self.encoder)
        self.alignment = _fresh(self.recipe, self.encoder, self.source)

    @property
    def parameters(self) -> int:
        return trained_parameters(self.alignment)

    def resolved(self, device: torch.device, processes: int) -> AlignRecipe:
        """The images that can be read are known once their features are cached."""
        recipe, tokens = self.recipe, self.recipe.probe.tokens
        assert tokens != "auto"
        _check(recipe.trainer)
        self.encoder.to(device)
        self.alignment.text.to(device)
        found = make_pairs(self.encoder, self.source, self.alignment.text, tokens, recipe.data, recipe.trainer.seed)
        self.pairs, self.held_out, self.unreadable = found
        trainer = _resolved(recipe.trainer, len(self.pairs), device, processes)
        return recipe.model_copy(update={"trainer": trainer})

    def job(self, recipe: AlignRecipe, run: AlignedRun, fabric: Fabric) -> AlignmentJob:
        self.alignment.text.to(fabric.device)
        return AlignmentJob(
            recipe, self.source, self.encoder, self.alignment, self.pairs, self.held_out, run, self.unreadable
        )


def _page(run: AlignedRun) -> str:
    from asterism.extras.words.report import aligned_page  # what only a report needs

    return aligned_page(run)


ALIGNMENT = Kind("align", AlignRecipe, AlignedRun, open_aligned, OpenedAlignment, _page)


def _probed(recipe: AlignRecipe, encoder: Encoder) -> AlignRecipe:
    """The recipe with the tokens and heads of the probe."""
    probe = recipe.probe
    has_concepts = isinstance(encoder, ConceptEncoder) and encoder.backbone.registers > 0
    tokens = ("sparse" if has_concepts else "patches") if probe.tokens == "auto" else probe.tokens
    heads = usual_heads(encoder.backbone.dim) if probe.heads == "auto" else probe.heads
    size = encoder.image_size
    with torch.no_grad():  # refuses tokens that the encoder does not have
        chosen_tokens(encoder(torch.zeros(1, 3, size, size)), tokens)
    return recipe.model_copy(update={"probe": probe.model_copy(update={"tokens": tokens, "heads": heads})})


def _fresh(recipe: AlignRecipe, encoder: Encoder, source: Captioned) -> Alignment:
    """Probe and tower with fresh weights."""
    probe, tokens, loss, seed = recipe.probe, recipe.probe.tokens, recipe.loss, recipe.trainer.seed
    assert tokens != "auto"
    assert probe.heads != "auto"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        tower = build_tower(recipe.text, training_sentences(source, recipe.data, seed))
        pooling = AttentionPooling(encoder.backbone.dim, tower.dim, probe.heads, probe.mlp_ratio)
    return Alignment(pooling, tower, tokens, loss.scale, loss.bias)


def _check(trainer: TrainerConfig) -> None:
    if trainer.accumulate > 1:
        raise UserError(
            f"trainer.accumulate = {trainer.accumulate}, but every pair of the batch is a negative of every other, and "
            "a micro-batch has fewer; set trainer.accumulate=1. The memory of the loss is linear in the batch anyway"
        )
    if trainer.strategy == "fsdp":
        raise UserError("trainer.strategy=fsdp shards large networks, and a probe is small; use ddp")


def _resolved(trainer: TrainerConfig, images: int, device: torch.device, processes: int) -> TrainerConfig:
    if trainer.batch_size == "auto":
        batch = max(1, min(_BATCH, images) // processes) * processes
        trainer = trainer.model_copy(update={"batch_size": batch})
    if trainer.epochs == "auto" and trainer.steps is None and trainer.minutes is None:
        trainer = trainer.model_copy(update={"epochs": _EPOCHS})
    return resolved_trainer(trainer, images, device, processes)
