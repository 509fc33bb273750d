"""Starts, resumes and plans runs, with the number of processes that suits the machine."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from lightning_fabric import Fabric

from asterism.config import with_overrides
from asterism.data import Source, open_source
from asterism.data.sources.segmented_layouts import open_segmented
from asterism.errors import UserError
from asterism.files import scratch_folder
from asterism.methods.base import Method
from asterism.nn.weights.load import load_weights_into
from asterism.ops import collectives
from asterism.train import checkpoint
from asterism.train.building import build_method, trained_parameters
from asterism.train.cores import process_count, starts_processes
from asterism.train.cost import step_cost
from asterism.train.launch import launch
from asterism.train.loop import Training
from asterism.train.plan import Plan
from asterism.train.processes import Place, Task, started_processes
from asterism.train.recipe import Recipe
from asterism.train.resolve import limited_to, resolve
from asterism.train.run import Run, check_free, create_run, open_run

_TRIAL_STEPS = 8  # timed before a run whose length is given in minutes


def pretrain(recipe: Recipe, out: Path, *, init: str | None = None, overwrite: bool = False) -> Run:
    """Train a new run in the folder `out`; the backbone starts from the weights `init`, if given."""
    return _on_all_cores(Task(recipe.model_dump(mode="json"), str(out), init, overwrite))


def resume(path: Path, overrides: tuple[str, ...] = ()) -> Run:
    """Resume a run from its last checkpoint; the result is the same as without the interruption."""
    run = open_run(path)
    _check_resumable(overrides)
    recipe = Recipe.parse(with_overrides(run.config, overrides))
    return _on_all_cores(Task(recipe.model_dump(mode="json"), str(path), resume=True))


def _on_all_cores(task: Task) -> Run:
    recipe = Recipe.parse(task.recipe)
    if not starts_processes(recipe.trainer):
        return run_task(task)
    if not task.resume:
        check_free(Path(task.out), task.overwrite)
    count = process_count(recipe.trainer, trained_parameters(build_method(recipe)))
    if count == 1:
        return run_task(task)
    with started_processes(task, count) as place:
        return run_task(task, place)


def run_task(task: Task, place: Place | None = None) -> Run:
    """Run a task in this process. place: its rank among the processes that were started for the task."""
    recipe = Recipe.parse(task.recipe)
    fabric = launch(recipe.trainer, place)
    if task.resume:
        return _resume(fabric, recipe, Path(task.out))
    return _pretrain(fabric, recipe, Path(task.out), task.init, task.overwrite)


def _pretrain(fabric: Fabric, recipe: Recipe, out: Path, init: str | None, overwrite: bool) -> Run:
    collectives.on_first_process(lambda: check_free(out, overwrite))
    method = build_method(recipe)
    source = _open_data(recipe, method)
    recipe = resolve(recipe, len(source), fabric.device, fabric.world_size, method.backbone.architecture.init)
    if recipe.trainer.minutes is not None:
        recipe = limited_to(recipe, _seconds_per_step(fabric, recipe, source, out))
    if init is not None:
        loaded = load_weights_into(method.backbone, init)
        method.backbone_was_loaded()
        fabric.print(f"Started from {init}: {loaded}")
    run = collectives.on_first_process(lambda: create_run(out, recipe, overwrite))
    try:
        return Training(fabric, recipe, source, method, run).train(0)
    except UserError:
        if not run.has_results():
            shutil.rmtree(run.path, ignore_errors=True)
        raise


def _resume(fabric: Fabric, recipe: Recipe, path: Path) -> Run:
    run = open_run(path)
    state = checkpoint.read(run.checkpoints)
    method = build_method(recipe)
    source = _open_data(recipe, method)
    if len(source) != state.facts["images"]:
        raise UserError(
            f"{recipe.data.path} has {len(source)} images, but the run was started on {state.facts['images']}; "
            f"start a new run from its weights: --init {path}"
        )
    if state.step >= state.facts["steps"]:
        fabric.print(f"{path} is finished: all {state.step} steps are done")
        return run
    training = Training(fabric, recipe, source, method, run)
    checkpoint.restore(state, training.method, training.optimizer)
    return training.train(state.step)


def plan(recipe: Recipe) -> Plan:
    """Estimate the cost of a run on this machine without starting it."""
    method = build_method(recipe)
    trained = trained_parameters(method)
    if starts_processes(recipe.trainer):
        device, processes = torch.device("cpu"), process_count(recipe.trainer, trained)
    else:
        fabric = launch(recipe.trainer)
        device, processes = fabric.device, fabric.world_size
    source = _open_data(recipe, method)
    recipe = resolve(recipe, len(source), device, processes, method.backbone.architecture.init)
    trainer = recipe.trainer
    assert isinstance(trainer.batch_size, int)
    cost = step_cost(method.to(device), trainer.batch_size // processes, trainer.accumulate)
    if trainer.minutes is not None:
        recipe = limited_to(recipe, cost.seconds)
    return Plan(recipe, len(source), trained, cost, device, processes)


def _seconds_per_step(fabric: Fabric, recipe: Recipe, source: Source, out: Path) -> float:
    """Seconds per step, measured on a copy of the method that is then discarded."""
    trial = recipe.model_copy(update={"trainer": recipe.trainer.model_copy(update={"steps": _TRIAL_STEPS})})
    with scratch_folder(out) as folder:
        seconds = Training(fabric, trial, source, build_method(recipe), Run(folder)).time_steps()
    return float(collectives.all_reduce_max(torch.tensor(seconds, device=fabric.device)))


def _open_data(recipe: Recipe, method: Method) -> Source:
    """The images; with masks only if a view needs them, because reading masks takes time."""
    labelled = any(view.segments for view in method.views)
    return (open_segmented if labelled else open_source)(recipe.data.path, recipe.data.split)


_RESUMABLE = (
    "trainer.accelerator",
    "trainer.devices",
    "trainer.nodes",
    "trainer.strategy",
    "data.path",
    "data.workers",
)


def _check_resumable(overrides: tuple[str, ...]) -> None:
    """Allow only changes that do not affect the result of a resumed run."""
    for override in overrides:
        key = override.partition("=")[0]
        if key not in _RESUMABLE and not key.startswith(("checkpoint.", "monitor.")):
            raise UserError(
                f"{key} cannot change when a run is resumed; allowed are {', '.join(_RESUMABLE)}, checkpoint.* and "
                "monitor.*. For other changes start a new run from its weights with --init"
            )
