"""Fine-tuning as a kind of run: labelled images, the network that it starts from, and the task on top of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch
from lightning_fabric import Fabric
from torch import Tensor

from asterism.errors import UserError
from asterism.finetuning.job import FineTuning
from asterism.finetuning.labelled import open_parts
from asterism.finetuning.probing import Probe, fitted_probe, start_from
from asterism.finetuning.recipe import FinetuneRecipe, NetworkConfig, SourceConfig
from asterism.finetuning.run import FinetunedRun, open_finetuned
from asterism.finetuning.task import Start, Task, task_class
from asterism.nn.backbone import Backbone, rebuild_backbone
from asterism.nn.learner import trained_parameters
from asterism.nn.weights.checkpoint_file import read_projection
from asterism.nn.weights.description import warn_of_guesses, weights_options
from asterism.nn.weights.load import LoadReport, load_weights_into, read_weights
from asterism.nn.weights.metadata import ArchitectureDescription
from asterism.nn.weights.packaged import is_packaged
from asterism.ops import collectives
from asterism.train import checkpoint
from asterism.train.job import all_cores
from asterism.train.kind import Init, Kind, Opened
from asterism.train.recipe import TrainerConfig
from asterism.train.resolve import resolved_trainer, resolved_workers

_LARGE = 1024  # channels of ViT-L


class OpenedFineTuning(Opened[FinetuneRecipe, FinetunedRun]):
    """The labelled images, and the task with the weights of the source; a resumed run gets its weights later."""

    def __init__(self, recipe: FinetuneRecipe, init: Init | None = None, run: FinetunedRun | None = None) -> None:
        self.recipe = recipe if recipe.source.network is not None else with_source(recipe)
        self.parts = open_parts(self.recipe)
        self.source = self.parts.everything
        self._fresh = run is not None or recipe.source.weights == "fresh"
        self.task, self._loaded = _built(self.recipe, self.parts.classes, self._fresh)

    @property
    def parameters(self) -> int:
        return trained_parameters(self.task)

    def resolved(self, device: torch.device, processes: int) -> FinetuneRecipe:
        recipe = self.recipe
        trainer = _resolved_trainer(recipe, len(self.parts.train), device, processes)
        workers = resolved_workers(recipe.data.workers, device, processes)
        data = recipe.data.model_copy(update={"workers": workers})
        return recipe.model_copy(update={"trainer": trainer, "data": data})

    def job(self, recipe: FinetuneRecipe, run: FinetunedRun, fabric: Fabric) -> FineTuning:
        probe = None
        if not self._fresh and self.task.probed_layer() is not None:
            self.task.to(fabric.device)
            probe = collectives.on_first_process(lambda: self._probe(recipe, fabric.device))
            start_from(self.task, probe.measured)
        return FineTuning(recipe, self.parts, self.task, run, fabric.device, probe)

    def _probe(self, recipe: FinetuneRecipe, device: torch.device) -> Probe:
        with all_cores(device):
            return fitted_probe(self.task, self.parts, recipe.trainer.seed, recipe.trainer.minutes)

    def started_from(self) -> list[str]:
        return [] if self._loaded is None else [f"Started from {self.recipe.source.path}: {self._loaded}"]


FINETUNING = Kind("finetune", FinetuneRecipe, FinetunedRun, open_finetuned, OpenedFineTuning)


def with_source(recipe: FinetuneRecipe) -> FinetuneRecipe:
    """The recipe with what it takes from the source: the network, sizes of heads, length and layer decay."""
    source, dim = _with_network(recipe.source, partial(_usual_image_size, recipe))
    task = recipe.task.resolved(lambda: _pretrained_projection(source.path))
    optim, trainer = recipe.optim, recipe.trainer
    if optim.layer_decay == "auto":
        optim = optim.model_copy(update={"layer_decay": task.usual_layer_decay(dim)})
    if trainer.epochs == "auto" and trainer.steps is None and trainer.minutes is None:
        trainer = trainer.model_copy(update={"epochs": task.usual_epochs(dim)})
    return recipe.model_copy(update={"source": source, "task": task, "optim": optim, "trainer": trainer})


def _usual_image_size(recipe: FinetuneRecipe, native: int) -> int:
    kind, data = task_class(recipe.task.name), recipe.data
    return kind.usual_image_size(native, lambda: kind.open(recipe.task, data.path, data.split))


def _with_network(config: SourceConfig, usual_size: Callable[[int], int]) -> tuple[SourceConfig, int]:
    """The settings with the network of the source, image size and drop path resolved; and its channels."""
    weights = read_weights(config.path, weights_options(**config.options))
    if weights.asked is not None:
        raise UserError(weights.asked)
    warn_of_guesses(config.path, weights.guesses)
    arguments = dict(weights.architecture.arguments)
    outline = rebuild_backbone(weights.architecture)
    size = config.image_size or weights.image_size or outline.image_size
    if config.image_size is None and outline.first_block == 0:  # the sides of a Swin are multiples of its windows
        size = max(outline.patch_size, usual_size(size) // outline.patch_size * outline.patch_size)
    if size % outline.patch_size:
        raise UserError(
            f"source.image_size = {size} is not a multiple of the patch size {outline.patch_size}; "
            f"choose {max(1, round(size / outline.patch_size)) * outline.patch_size}"
        )
    if size != outline.image_size:
        arguments["img_size"] = size
    architecture = {**asdict(weights.architecture), "arguments": arguments}
    network = NetworkConfig(
        architecture=ArchitectureDescription.parse(architecture, section="source.network.architecture"),
        mean=weights.mean,
        std=weights.std,
        image_size=size,
    )
    usual = 0.2 if outline.dim >= _LARGE else 0.1
    drop_path = usual if config.drop_path == "auto" else config.drop_path
    return config.model_copy(update={"network": network, "drop_path": drop_path}), outline.dim


def _built(recipe: FinetuneRecipe, classes: tuple[str, ...], fresh: bool) -> tuple[Task, LoadReport | None]:
    """The task with its initial weights, and what was loaded from the source, unless it is fresh."""
    source, seed = recipe.source, recipe.trainer.seed
    backbone, network = _fresh_network(source, seed), source.network
    assert network is not None
    loaded = None if fresh else load_weights_into(backbone, source.path, **source.options)
    projection: Mapping[str, Tensor] = {}
    if not fresh and recipe.task.takes_projection:
        projection = _pretrained_projection(source.path)
    start = Start(backbone, network.mean, network.std, network.image_size, classes, seed, projection)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return task_class(recipe.task.name)(recipe.task, start), loaded


def _fresh_network(config: SourceConfig, seed: int) -> Backbone:
    assert config.network is not None
    assert config.drop_path != "auto"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return rebuild_backbone(config.network.built(), drop_path=config.drop_path, checkpointing=config.checkpointing)


def _pretrained_projection(path: str) -> Mapping[str, Tensor]:
    """The layers of the projection head that the source was pretrained with: `0.weight`, `0.bias`, `2.weight`, …"""
    place = Path(path)
    if is_packaged(path):
        return {}
    if (place / "checkpoints").is_dir():
        found, _ = checkpoint.newest_intact(place / "checkpoints")
        return read_projection(found / "method.safetensors")
    return read_projection(place) if place.exists() else {}


def _resolved_trainer(recipe: FinetuneRecipe, images: int, device: torch.device, world: int) -> TrainerConfig:
    """An automatic batch size is one that suits the task; one that the user gave is checked."""
    processes = world * recipe.trainer.accumulate
    trainer, usual = recipe.trainer, recipe.task.usual_batch
    if trainer.batch_size == "auto" and usual is not None:
        batch = max(1, min(usual, images) // processes) * processes
        trainer = trainer.model_copy(update={"batch_size": batch})
    trainer = resolved_trainer(trainer, images, device, world)
    assert isinstance(trainer.batch_size, int)
    try:
        recipe.task.check_micro_batch(trainer.batch_size // processes)
    except UserError:
        if recipe.trainer.batch_size != "auto" or trainer.batch_size <= processes:
            raise
        smaller = recipe.trainer.model_copy(update={"batch_size": trainer.batch_size - processes})
        return _resolved_trainer(recipe.model_copy(update={"trainer": smaller}), images, device, world)
    return trainer
