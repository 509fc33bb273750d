"""Starts, resumes and plans runs, with the number of processes that suits the machine."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import torch
from lightning_fabric import Fabric

from asterism.config import with_overrides
from asterism.data import Source, open_source
from asterism.data.sources.segmented_layouts import open_segmented
from asterism.errors import UserError
from asterism.files import scratch_folder
from asterism.lock import check_unowned, folder_lock, owned
from asterism.methods.base import Method
from asterism.nn.weights.load import load_weights_into
from asterism.ops import collectives
from asterism.train import checkpoint
from asterism.train.building import build_method, trained_parameters
from asterism.train.cores import process_count, starts_processes
from asterism.train.cost import step_cost
from asterism.train.exporting import export_if_stale
from asterism.train.init_network import with_network_of
from asterism.train.launch import launch
from asterism.train.loop import Examples, Training
from asterism.train.plan import Plan
from asterism.train.processes import Init, Place, Task, explained_loss_of_processes, started_processes
from asterism.train.recipe import Recipe
from asterism.train.resolve import limited_to, resolve
from asterism.train.resuming import check_data, check_frozen_encoders, check_overrides, check_recipe
from asterism.train.run import Run, check_free, create_run, empty, open_run
from asterism.train.trackers.chosen import check_packages

_TRIAL_STEPS = 8  # timed before a run whose length is given in minutes


def pretrain(
    recipe: Recipe,
    out: Path,
    *,
    init: Init | None = None,
    overwrite: bool = False,
    examples: Examples | None = None,
) -> Run:
    """Train a new run in the folder `out`; the backbone starts from the weights `init`, if given.

    examples: draws pictures of the finished run for its trackers.
    """
    recipe = with_network_of(recipe, init)
    return _on_all_cores(Task(recipe.model_dump(mode="json"), str(out), init, overwrite), examples)


def resume(path: Path, overrides: tuple[str, ...] = (), examples: Examples | None = None) -> Run:
    """Resume a run from its last checkpoint; the result is the same as without the interruption."""
    run = open_run(path)
    check_overrides(overrides)
    recipe = Recipe.parse(with_overrides(run.config, overrides))
    return _on_all_cores(Task(recipe.model_dump(mode="json"), str(path), resume=True), examples)


def _on_all_cores(task: Task, examples: Examples | None) -> Run:
    recipe = Recipe.parse(task.recipe)
    if not starts_processes(recipe.trainer):
        with explained_loss_of_processes():
            return _run_here(task, examples)
    _check_place(task)
    count = process_count(recipe.trainer, trained_parameters(build_method(recipe)))
    if count == 1:
        return _run_here(task, examples)
    with started_processes(task, count) as place:
        return run_task(task, place, examples)


def _run_here(task: Task, examples: Examples | None) -> Run:
    try:
        return run_task(task, examples=examples)
    finally:
        if collectives.world_size() == 1:
            collectives.leave_processes()


def _check_place(task: Task) -> None:
    """Refuse a folder that another process writes, or that must not be overwritten, before anything takes time."""
    out = Path(task.out)
    check_unowned(folder_lock(out), out)
    if not task.resume:
        check_free(out, task.overwrite)


def run_task(task: Task, place: Place | None = None, examples: Examples | None = None) -> Run:
    """Run a task in this process. place: its rank among the processes that were started for the task."""
    recipe = Recipe.parse(task.recipe)
    fabric = launch(recipe.trainer, place)
    collectives.on_first_process(lambda: _check_place(task))
    collectives.on_first_process(lambda: check_packages(recipe.monitor))
    if task.resume:
        return _resume(fabric, recipe, Path(task.out), examples)
    return _pretrain(fabric, recipe, task, examples)


def _pretrain(fabric: Fabric, recipe: Recipe, task: Task, examples: Examples | None) -> Run:
    """Everything that can fail is done before the folder is created."""
    out, init = Path(task.out), task.init
    method = build_method(recipe)
    source = _open_data(recipe, method)
    recipe = resolve(recipe, len(source), fabric.device, fabric.world_size, method.backbone.architecture.init)
    if recipe.trainer.minutes is not None:
        recipe = limited_to(recipe, _seconds_per_step(fabric, recipe, source, out))
    if init is not None:
        loaded = load_weights_into(method.backbone, init.source, **init.options)
        method.backbone_was_loaded()
        fabric.print(f"Started from {init.source}: {loaded}")
        if loaded.pixels not in (None, (method.mean, method.std)):
            fabric.print(f"Its pixels had mean and std {loaded.pixels}; set data.mean and data.std to these, if unsure")
    training = Training(fabric, recipe, source, method, Run(out))
    collectives.on_first_process(training.open_probe)
    with _new_folder(out):
        collectives.on_first_process(lambda: create_run(out, recipe, task.overwrite))
        try:
            return training.train(0, examples)
        except BaseException:
            if fabric.is_global_zero and not Run(out).has_results():
                empty(out)
            raise


def _resume(fabric: Fabric, recipe: Recipe, path: Path, examples: Examples | None) -> Run:
    with _lock(path):
        run = open_run(path)
        collectives.on_first_process(run.check_files)
        state = _last_intact(fabric, run)
        method = build_method(recipe)
        source = _open_data(recipe, method)
        check_data(source, recipe.data.path, state.facts, path)
        check_recipe(recipe, state.facts, path / "config.yaml")
        check_frozen_encoders(method, state.facts, path)
        recipe = resolve(recipe, len(source), fabric.device, fabric.world_size, method.backbone.architecture.init)
        checkpoint.check_fit(state.method, method.state_dict())
        training = None
        if state.step < state.facts.steps:
            training = Training(fabric, recipe, source, method, run)
            collectives.on_first_process(training.open_probe)
        if collectives.on_first_process(lambda: _repaired(run, recipe, state)):
            fabric.print(f"Exported encoder.safetensors again, from the checkpoint of step {state.step}")
        if training is None:
            fabric.print(f"{path} is finished: all {state.step} steps are done")
            return run
        checkpoint.restore(state, training.method, training.optimizer)
        return training.train(state.step, examples)


def _repaired(run: Run, recipe: Recipe, state: checkpoint.State) -> bool:
    """Make the folder that of a run that has just saved this state; returns whether the encoder was exported again."""
    checkpoint.set_aside_after(state.step, run.checkpoints)
    return export_if_stale(run, recipe, state)


def _last_intact(fabric: Fabric, run: Run) -> checkpoint.State:
    """The last intact checkpoint; the first process looks for it."""
    path, problems = collectives.on_first_process(lambda: checkpoint.newest_intact(run.checkpoints))
    for problem in problems:
        fabric.print(f"{problem}. Resuming from {path.name}")
    try:
        return checkpoint.load(path)
    except checkpoint.Damaged as error:
        raise UserError(f"cannot read the checkpoint {path}: {error}") from None


@contextlib.contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """The first process owns the folder; if it cannot, all processes raise."""
    with contextlib.ExitStack() as stack:

        def take() -> None:
            stack.enter_context(owned(folder_lock(folder), folder))

        collectives.on_first_process(take)
        yield


@contextlib.contextmanager
def _new_folder(folder: Path) -> Iterator[None]:
    """Create the folder and own it; it is removed, with parents that were created for it, if it is empty in the end."""
    first = collectives.rank() == 0
    missing = [place for place in (folder, *folder.parents) if first and not place.exists()]
    try:
        if first:
            folder.mkdir(parents=True, exist_ok=True)
        with _lock(folder):
            yield
    finally:
        for place in missing:
            with contextlib.suppress(OSError):
                place.rmdir()


def plan(recipe: Recipe, init: Init | None = None) -> Plan:
    """Estimate the cost of a run on this machine without starting it."""
    recipe = with_network_of(recipe, init)
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
