"""Decides what a recipe leaves open: the network of other weights, and "auto" settings for this data and device."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from rich.table import Table

from asterism.data.workers import check_count, cores
from asterism.errors import UserError
from asterism.nn.backbone import FROM_WEIGHTS, NAME_OF_INIT, Architecture, BackboneConfig
from asterism.nn.initialisation import Init as InitRule
from asterism.nn.weights.description import warn_of_guesses, weights_options
from asterism.nn.weights.load import read_weights
from asterism.train.cores import BATCH
from asterism.train.kind import Init
from asterism.train.recipe import Recipe, TrainerConfig
from asterism.train.units import duration

_LEAST_STEPS = 10_000  # with few images, an automatic run makes more epochs so that it trains long enough
_EPOCHS = 100
# Arguments of features alone, which every backbone sets itself.
_OWN = ("num_classes", "global_pool", "dynamic_img_size", "strict_img_size", "drop_path_rate")


def with_network_of(recipe: Recipe, init: Init | None) -> Recipe:
    """The recipe with network, epsilon and pixel statistics of the weights, if `backbone.name` is `init`.

    Image size, drop path, mask token and registers remain the recipe's, and so do pixel statistics that were given.
    """
    config = recipe.backbone
    if config.name != NAME_OF_INIT:
        return recipe
    if init is None:
        raise UserError("backbone.name = init takes the network from other weights: give --init WEIGHTS")
    given = [name for name in FROM_WEIGHTS if name in config.model_fields_set]
    if given:
        raise UserError(
            f"backbone.{given[0]} = {getattr(config, given[0])!r}, but backbone.name = init takes it from the weights; "
            "leave it out"
        )
    weights = read_weights(init.source, weights_options(**init.options))
    if weights.asked is not None:
        raise UserError(weights.asked)
    warn_of_guesses(init.source, weights.guesses)
    pixels = {"mean": weights.mean, "std": weights.std}
    kept = recipe.data.model_fields_set
    data = recipe.data.model_copy(update={key: value for key, value in pixels.items() if key not in kept})
    return recipe.model_copy(update={"backbone": _described(config, weights.architecture), "data": data})


def _described(config: BackboneConfig, architecture: Architecture) -> BackboneConfig:
    arguments: dict[str, Any] = {key: v for key, v in architecture.arguments.items() if key not in _OWN}
    changes = {
        "name": architecture.name,
        "arguments": arguments,
        "resampling": architecture.resampling,
        "layer_norm_eps": config.layer_norm_eps or architecture.layer_norm_eps,
    }
    return BackboneConfig.model_validate({**config.model_dump(), **changes})


def resolve(recipe: Recipe, images: int, device: torch.device, world: int, init: InitRule) -> Recipe:
    """The recipe with every "auto" replaced; raises if batch size, devices and data do not fit together.

    init: how the weights of the backbone were initialised.
    """
    _check_accumulation(recipe)
    return recipe.model_copy(
        update={
            "backbone": recipe.backbone.model_copy(update={"init": init}),
            "trainer": resolved_trainer(recipe.trainer, images, device, world),
            "data": recipe.data.model_copy(update={"workers": resolved_workers(recipe.data.workers, device, world)}),
        }
    )


def resolved_trainer(trainer: TrainerConfig, images: int, device: torch.device, world: int) -> TrainerConfig:
    """Batch size, steps, precision and strategy for this many images and processes. Minutes remain as they are."""
    per_step = world * trainer.accumulate
    batch = trainer.batch_size
    if batch == "auto":
        usual = BATCH if device.type == "cpu" else 128 * per_step
        batch = max(1, min(usual, images) // per_step) * per_step
    if batch > images:
        raise UserError(
            f"trainer.batch_size = {batch} is larger than the data set ({images} images); "
            f"choose a batch size of at most {images // per_step * per_step}"
        )
    if batch % per_step:
        raise UserError(
            f"trainer.batch_size = {batch} is not divisible by {world} processes × {trainer.accumulate} micro-batches; "
            f"choose a multiple of {per_step}"
        )
    steps = trainer.steps if trainer.steps or trainer.minutes else _steps(trainer.epochs, images // batch)
    precision = trainer.precision
    if precision == "auto":
        precision = "bf16" if device.type == "cuda" and torch.cuda.is_bf16_supported() else "32"
    strategy = trainer.strategy if trainer.strategy != "auto" or world == 1 else "ddp"
    changes: dict[str, Any] = {
        "batch_size": batch,
        "steps": steps,
        "epochs": "auto",
        "precision": precision,
        "strategy": strategy,
    }
    if trainer.compile == "auto":
        changes["compile"] = "on" if device.type == "cuda" else "off"
    return trainer.model_copy(update=changes)


def resolved_workers(workers: int | Literal["auto"], device: torch.device, world: int) -> int:
    """Data workers per process. On a CPU they compete with training for cores: a single process gets few, and several
    processes, which use all cores, load their own data. On a GPU the workers have to keep up with it."""
    if workers != "auto":
        check_count("data workers (data.workers)", workers)
        return workers
    if device.type == "cpu":
        return max(1, cores() // 8) if world == 1 else 0
    return max(1, min(16, cores() // world))


def _check_accumulation(recipe: Recipe) -> None:
    """Refuse micro-batches for a loss that needs the whole batch at once, because they would change it."""
    parts, coupling = recipe.trainer.accumulate, recipe.method.needs_whole_batch
    if parts > 1 and coupling is not None:
        raise UserError(
            f"trainer.accumulate = {parts}, but {coupling}, and a micro-batch is 1/{parts} of it. Set "
            "trainer.accumulate=1; to save memory, use more devices, a smaller trainer.batch_size or "
            "backbone.checkpointing=true"
        )


def describe(recipe: Recipe, images: int, parameters: int, device: torch.device, world: int) -> Table:
    """A summary of the run, shown before the first step."""
    trainer = recipe.trainer
    assert isinstance(trainer.batch_size, int)
    table = Table.grid(padding=(0, 2))
    table.add_row("method", recipe.method.name)
    weights = "of the weights" if recipe.backbone.arguments else f"init {recipe.backbone.init}"
    table.add_row("backbone", f"{_shape(recipe.backbone)}, {weights}")
    table.add_row("parameters", f"{parameters / 1e6:.1f} M trained")
    table.add_row("data", f"{recipe.data.path}, {images:,} images")
    table.add_row("length", length(trainer, images))
    table.add_row("learning rate", f"{recipe.optim.peak_lr(trainer.batch_size):.3g} at its peak, {recipe.optim.name}")
    table.add_row(
        "device", f"{world} × {device.type}, precision {trainer.precision}, {recipe.data.workers} data workers"
    )
    return table


def length(trainer: TrainerConfig, images: int, unit: str = "images") -> str:
    """The length of a run in words."""
    assert isinstance(trainer.batch_size, int)
    if trainer.minutes is not None:
        return f"{duration(60 * trainer.minutes)} by the clock, {trainer.batch_size} {unit} in a step"
    assert trainer.steps is not None
    epochs = trainer.steps / (images // trainer.batch_size)
    return f"{trainer.steps:,} steps of {trainer.batch_size} {unit} ({epochs:.1f} epochs)"


def advice(device: torch.device) -> str:
    """What makes steps cheaper."""
    smaller = "smaller views (backbone.image_size), larger patches (backbone.patch_size)"
    if device.type == "cpu":
        return f"{smaller}, a small network (backbone.dim=192 backbone.depth=4), or a GPU"
    return f"{smaller}, or more devices (trainer.devices)"


def _shape(config: BackboneConfig) -> str:
    """The timm model and the changes to it of the recipe, or of the weights that it takes its network from."""
    changes = {
        "{} px": config.image_size,
        "patch {}": config.patch_size or config.arguments.get("patch_size"),
        "width {}": config.dim or config.arguments.get("embed_dim"),
        "depth {}": config.depth or config.arguments.get("depth"),
    }
    return ", ".join([config.name, *(form.format(value) for form, value in changes.items() if value is not None)])


def _steps(epochs: float | str, per_epoch: int) -> int:
    if isinstance(epochs, str):
        epochs = max(_EPOCHS, math.ceil(_LEAST_STEPS / per_epoch))
    return max(1, round(epochs * per_epoch))
