"""Starts and resumes alignment, with the number of processes that suits the machine."""

from __future__ import annotations

from pathlib import Path

import torch
from lightning_fabric import Fabric

from asterism.config import with_overrides
from asterism.errors import UserError
from asterism.extras.words.aligned import Alignment
from asterism.extras.words.attention_pooling import AttentionPooling, chosen_tokens, usual_heads
from asterism.extras.words.job import AlignmentJob, fingerprints
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
from asterism.ops import collectives
from asterism.train import checkpoint
from asterism.train.checkpoint import Facts
from asterism.train.loop import Training
from asterism.train.processes import Place, Request
from asterism.train.recipe import TrainerConfig
from asterism.train.resolve import limited_to, resolved_trainer
from asterism.train.resuming import check_data, check_overrides, check_recipe, check_unedited
from asterism.train.run import Run
from asterism.train.starting import TRIAL_STEPS, joined, last_intact, locked, new_run, on_all_cores, seconds_per_step

_BATCH = 512  # pairs; negatives are free when features are cached
_EPOCHS = 30.0


def align(recipe: AlignRecipe, out: Path, *, overwrite: bool = False) -> AlignedRun:
    """Train a new run in the folder `out`."""
    request = Request("align", __name__, recipe.model_dump(mode="json"), str(out), overwrite=overwrite)
    return _on_all_cores(request, recipe)


def resume(path: Path, overrides: tuple[str, ...] = ()) -> AlignedRun:
    """Resume a run from its last checkpoint; the result is the same as without the interruption."""
    run = open_aligned(path)
    check_overrides(overrides)
    recipe = AlignRecipe.parse(with_overrides(run.config, overrides))
    check_unedited(recipe, run)
    request = Request("align", __name__, recipe.model_dump(mode="json"), str(path), resume=True)
    return _on_all_cores(request, recipe)


def _on_all_cores(request: Request, recipe: AlignRecipe) -> AlignedRun:
    source = open_captions(recipe.data.path, recipe.data.split)  # mistakes are found before other processes start
    encoder = _encoder(recipe, Path(request.out) if request.resume else None)
    run = on_all_cores(
        request,
        recipe.trainer,
        lambda: trained_parameters(_alignment(_probed(recipe, encoder), source, encoder)),
        lambda place: run_request(request, place),
    )
    return AlignedRun(run.path)


def run_request(request: Request, place: Place | None = None) -> Run:
    """Train in this process. place: its rank among the processes that were started for the request."""
    recipe = AlignRecipe.parse(request.recipe)
    fabric = joined(request, recipe.trainer, recipe.monitor, place)
    if request.resume:
        return _resume(fabric, recipe, Path(request.out))
    return _align(fabric, recipe, request)


def _align(fabric: Fabric, recipe: AlignRecipe, request: Request) -> Run:
    """Everything that can fail is done before the folder is created."""
    out = Path(request.out)
    source = open_captions(recipe.data.path, recipe.data.split)
    encoder = _encoder(recipe, None)
    recipe = _probed(recipe, encoder)
    recipe, job = _job(fabric, recipe, source, encoder, AlignedRun(out))
    if recipe.trainer.minutes is not None:
        steps = TrainerConfig.model_copy(recipe.trainer, update={"steps": TRIAL_STEPS, "minutes": None})
        trial = recipe.model_copy(update={"trainer": steps})
        seconds = seconds_per_step(
            fabric, out, lambda run: _job(fabric, trial, source, encoder, AlignedRun(run.path))[1]
        )
        recipe = recipe.model_copy(update={"trainer": limited_to(recipe.trainer, seconds)})
        recipe, job = _job(fabric, recipe, source, encoder, AlignedRun(out))
    training = Training(fabric, job)
    with new_run(fabric, out, recipe, request.overwrite):
        return training.train(0)


def _resume(fabric: Fabric, recipe: AlignRecipe, path: Path) -> Run:
    with locked(path):
        run = open_aligned(path)
        collectives.on_first_process(run.check_files)
        state = last_intact(fabric, run)
        source = open_captions(recipe.data.path, recipe.data.split)
        check_data(source, recipe.data.path, state.facts, path)
        check_recipe(recipe, state.facts, path / "config.yaml")
        encoder = _encoder(recipe, path)
        recipe, job = _job(fabric, recipe, source, encoder, run)
        _check_frozen(encoder, job.model.alignment, state.facts)
        checkpoint.check_fit(state.method, job.learner.state_dict())
        training = Training(fabric, job)
        training.restore(state)
        collectives.on_first_process(lambda: checkpoint.set_aside_after(state.step, run.checkpoints))
        if state.step >= job.steps:
            collectives.on_first_process(lambda: job.saved(state))  # a killed process may not have written it
            fabric.print(f"{path} is finished: its {state.step} steps are done")
            return run
        return training.train(state.step)


def _job(
    fabric: Fabric, recipe: AlignRecipe, source: Captioned, encoder: Encoder, run: AlignedRun
) -> tuple[AlignRecipe, AlignmentJob]:
    """The recipe for this data and these processes, and its job with fresh weights; features come from the cache."""
    tokens = recipe.probe.tokens
    assert tokens != "auto"
    alignment = _alignment(recipe, source, encoder)
    encoder.to(fabric.device)
    alignment.text.to(fabric.device)
    found = make_pairs(encoder, source, alignment.text, tokens, recipe.data, recipe.trainer.seed)
    pairs, held_out, unreadable = found
    recipe = recipe.model_copy(update={"trainer": _resolved(recipe.trainer, len(pairs), fabric)})
    return recipe, AlignmentJob(recipe, source, encoder, alignment, pairs, held_out, run, unreadable)


def _encoder(recipe: AlignRecipe, run: Path | None) -> Encoder:
    """The frozen encoder: that of the source, or the copy in a run that is resumed."""
    if run is not None and AlignedRun(run).weights.is_file():
        encoder = load_encoder(run)
    else:
        encoder = load_encoder(recipe.source.path, **recipe.source.options)
    return encoder.requires_grad_(False).eval()


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


def _alignment(recipe: AlignRecipe, source: Captioned, encoder: Encoder) -> Alignment:
    """Probe and tower with fresh weights; all processes build the same."""
    probe, tokens, seed = recipe.probe, recipe.probe.tokens, recipe.trainer.seed
    assert tokens != "auto"
    assert probe.heads != "auto"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        tower = build_tower(recipe.text, training_sentences(source, recipe.data, seed))
        pooling = AttentionPooling(encoder.backbone.dim, tower.dim, probe.heads, probe.mlp_ratio)
    return Alignment(pooling, tower, tokens, recipe.loss.scale, recipe.loss.bias)


def _resolved(trainer: TrainerConfig, images: int, fabric: Fabric) -> TrainerConfig:
    if trainer.accumulate > 1:
        raise UserError(
            f"trainer.accumulate = {trainer.accumulate}, but every pair of the batch is a negative of every other, and "
            "a micro-batch has fewer; set trainer.accumulate=1. The memory of the loss is linear in the batch anyway"
        )
    if trainer.strategy == "fsdp":
        raise UserError("trainer.strategy=fsdp shards large networks, and a probe is small; use ddp")
    if trainer.batch_size == "auto":
        batch = max(1, min(_BATCH, images) // fabric.world_size) * fabric.world_size
        trainer = trainer.model_copy(update={"batch_size": batch})
    if trainer.epochs == "auto" and trainer.steps is None and trainer.minutes is None:
        trainer = trainer.model_copy(update={"epochs": _EPOCHS})
    return resolved_trainer(trainer, images, fabric.device, fabric.world_size)


def _check_frozen(encoder: Encoder, alignment: Alignment, facts: Facts) -> None:
    for setting, now in fingerprints(encoder, alignment).items():
        if facts.frozen_encoders.get(setting) != now:
            raise UserError(
                f"{setting} is not the network that the run was started with; restore it, or start a new run"
            )
