"""Starts and resumes fine-tuning, with the number of processes that suits the machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from lightning_fabric import Fabric
from torch import Tensor

from asterism.config import with_overrides
from asterism.errors import UserError
from asterism.finetuning.job import FineTuning
from asterism.finetuning.labelled import LabelledParts, open_parts
from asterism.finetuning.network import build_network, load_network, pretrained_projection, with_network
from asterism.finetuning.recipe import FinetuneRecipe
from asterism.finetuning.run import FinetunedRun, open_finetuned
from asterism.finetuning.task import Start, Task, task_class
from asterism.nn.learner import trained_parameters
from asterism.ops import collectives
from asterism.train import checkpoint
from asterism.train.loop import Training
from asterism.train.processes import Place, Request
from asterism.train.recipe import TrainerConfig
from asterism.train.resolve import limited_to, resolved_trainer, resolved_workers
from asterism.train.resuming import check_data, check_overrides, check_recipe, check_unedited
from asterism.train.run import Run
from asterism.train.starting import TRIAL_STEPS, joined, last_intact, locked, new_run, on_all_cores, seconds_per_step


def finetune(recipe: FinetuneRecipe, out: Path, *, overwrite: bool = False) -> FinetunedRun:
    """Train a new run in the folder `out`."""
    recipe = _with_source(recipe)
    request = Request("finetune", __name__, recipe.model_dump(mode="json"), str(out), overwrite=overwrite)
    return _on_all_cores(request, recipe)


def resume(path: Path, overrides: tuple[str, ...] = ()) -> FinetunedRun:
    """Resume a run from its last checkpoint; the result is the same as without the interruption."""
    run = open_finetuned(path)
    check_overrides(overrides)
    recipe = FinetuneRecipe.parse(with_overrides(run.config, overrides))
    check_unedited(recipe, run)
    request = Request("finetune", __name__, recipe.model_dump(mode="json"), str(path), resume=True)
    return _on_all_cores(request, recipe)


def _on_all_cores(request: Request, recipe: FinetuneRecipe) -> FinetunedRun:
    parts = open_parts(recipe)  # every mistake in the data is found before other processes start
    run = on_all_cores(
        request,
        recipe.trainer,
        lambda: trained_parameters(_task(recipe, parts.classes)),
        lambda place: run_request(request, place),
    )
    return FinetunedRun(run.path)


def run_request(request: Request, place: Place | None = None) -> Run:
    """Train in this process. place: its rank among the processes that were started for the request."""
    recipe = FinetuneRecipe.parse(request.recipe)
    fabric = joined(request, recipe.trainer, recipe.monitor, place)
    if request.resume:
        return _resume(fabric, recipe, Path(request.out))
    return _finetune(fabric, recipe, request)


def _finetune(fabric: Fabric, recipe: FinetuneRecipe, request: Request) -> Run:
    """Everything that can fail is done before the folder is created."""
    out = Path(request.out)
    parts = open_parts(recipe)
    recipe = _resolved(recipe, parts, fabric)
    if recipe.trainer.minutes is not None:
        trial = _with_trainer(recipe, recipe.trainer.model_copy(update={"steps": TRIAL_STEPS, "minutes": None}))

        def job_of(run: Run) -> FineTuning:
            return FineTuning(trial, parts, _task(trial, parts.classes), FinetunedRun(run.path), fabric.device)

        recipe = _with_trainer(recipe, limited_to(recipe.trainer, seconds_per_step(fabric, out, job_of)))
    task = _task(recipe, parts.classes, report=fabric.print)
    training = Training(fabric, FineTuning(recipe, parts, task, FinetunedRun(out), fabric.device))
    with new_run(fabric, out, recipe, request.overwrite):
        return training.train(0)


def _resume(fabric: Fabric, recipe: FinetuneRecipe, path: Path) -> Run:
    with locked(path):
        run = open_finetuned(path)
        collectives.on_first_process(run.check_files)
        state = last_intact(fabric, run)
        parts = open_parts(recipe)
        check_data(parts.everything, recipe.data.path, state.facts, path)
        check_recipe(recipe, state.facts, path / "config.yaml")
        recipe = _resolved(recipe, parts, fabric)
        fresh = recipe.model_copy(update={"source": recipe.source.model_copy(update={"weights": "fresh"})})
        job = FineTuning(recipe, parts, _task(fresh, parts.classes), run, fabric.device)
        checkpoint.check_fit(state.method, job.learner.state_dict())
        training = Training(fabric, job)
        training.restore(state)
        collectives.on_first_process(lambda: checkpoint.set_aside_after(state.step, run.checkpoints))
        job.repair(state, fabric.print)
        if state.step >= job.steps or job.ends_early(state.step):
            fabric.print(f"{path} is finished: its {state.step} steps are done")
            return run
        return training.train(state.step)


def _with_source(recipe: FinetuneRecipe) -> FinetuneRecipe:
    """The recipe with what it takes from the source: the network, sizes of heads, length and layer decay."""
    source = with_network(recipe.source)
    task = recipe.task.resolved(lambda: pretrained_projection(source.path))
    dim = build_network(source, seed=0).dim
    optim, trainer = recipe.optim, recipe.trainer
    if optim.layer_decay == "auto":
        optim = optim.model_copy(update={"layer_decay": task.usual_layer_decay(dim)})
    if trainer.epochs == "auto" and trainer.steps is None and trainer.minutes is None:
        trainer = trainer.model_copy(update={"epochs": task.usual_epochs(dim)})
    return recipe.model_copy(update={"source": source, "task": task, "optim": optim, "trainer": trainer})


def _resolved(recipe: FinetuneRecipe, parts: LabelledParts, fabric: Fabric) -> FinetuneRecipe:
    trainer = _resolved_trainer(recipe, len(parts.train), fabric)
    workers = resolved_workers(recipe.data.workers, fabric.device, fabric.world_size)
    data = recipe.data.model_copy(update={"workers": workers})
    return recipe.model_copy(update={"trainer": trainer, "data": data})


def _resolved_trainer(recipe: FinetuneRecipe, images: int, fabric: Fabric) -> TrainerConfig:
    """An automatic batch size is one that suits the task; one that the user gave is checked."""
    processes = fabric.world_size * recipe.trainer.accumulate
    trainer, usual = recipe.trainer, recipe.task.usual_batch
    if trainer.batch_size == "auto" and usual is not None:
        batch = max(1, min(usual, images) // processes) * processes
        trainer = trainer.model_copy(update={"batch_size": batch})
    trainer = resolved_trainer(trainer, images, fabric.device, fabric.world_size)
    assert isinstance(trainer.batch_size, int)
    try:
        recipe.task.check_micro_batch(trainer.batch_size // processes)
    except UserError:
        if recipe.trainer.batch_size != "auto" or trainer.batch_size <= processes:
            raise
        return _resolved_trainer(_with_trainer(recipe, _smaller(recipe, trainer, processes)), images, fabric)
    return trainer


def _smaller(recipe: FinetuneRecipe, trainer: TrainerConfig, by: int) -> TrainerConfig:
    assert isinstance(trainer.batch_size, int)
    return recipe.trainer.model_copy(update={"batch_size": trainer.batch_size - by})


def _with_trainer(recipe: FinetuneRecipe, trainer: TrainerConfig) -> FinetuneRecipe:
    return recipe.model_copy(update={"trainer": trainer})


def _task(recipe: FinetuneRecipe, classes: tuple[str, ...], report: Callable[[str], None] | None = None) -> Task:
    """The task with its initial weights; all processes build the same."""
    source, seed = recipe.source, recipe.trainer.seed
    assert source.network is not None
    backbone = build_network(source, seed)
    projection: Mapping[str, Tensor] = {}
    if source.weights == "pretrained":
        loaded = load_network(backbone, source)
        if recipe.task.takes_projection:
            projection = pretrained_projection(source.path)
        if report is not None:
            report(f"Started from {source.path}: {loaded}")
    network = source.network
    start = Start(backbone, network.mean, network.std, network.image_size, classes, seed, projection)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return task_class(recipe.task.name)(recipe.task, start)
