"""Starts, resumes and plans pretraining, with the number of processes that suits the machine."""

from __future__ import annotations

from pathlib import Path

import torch
from lightning_fabric import Fabric

from asterism.config import with_overrides
from asterism.data import Source, open_source
from asterism.data.sources.segmented_layouts import open_segmented
from asterism.methods.base import Method
from asterism.nn.learner import trained_parameters
from asterism.nn.weights.load import load_weights_into
from asterism.ops import collectives
from asterism.train import checkpoint
from asterism.train.building import build_method
from asterism.train.cores import process_count, starts_processes, training_threads
from asterism.train.cost import step_cost
from asterism.train.exporting import export_if_stale
from asterism.train.init_network import with_network_of
from asterism.train.launch import launch
from asterism.train.loop import Training
from asterism.train.memory_estimate import estimate_memory
from asterism.train.plan import Plan
from asterism.train.pretraining import Examples, Pretraining
from asterism.train.processes import Init, Place, Request
from asterism.train.profiling import Profile, profile_steps
from asterism.train.recipe import Recipe
from asterism.train.resolve import limited_to, resolve
from asterism.train.resuming import check_data, check_frozen_encoders, check_overrides, check_recipe, check_unedited
from asterism.train.run import Run, open_run
from asterism.train.starting import TRIAL_STEPS, joined, last_intact, locked, new_run, on_all_cores, seconds_per_step


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
    request = Request("pretrain", __name__, recipe.model_dump(mode="json"), str(out), init, overwrite)
    return _on_all_cores(request, recipe, examples)


def resume(path: Path, overrides: tuple[str, ...] = (), examples: Examples | None = None) -> Run:
    """Resume a run from its last checkpoint; the result is the same as without the interruption."""
    run = open_run(path)
    check_overrides(overrides)
    recipe = Recipe.parse(with_overrides(run.config, overrides))
    check_unedited(recipe, run)
    request = Request("pretrain", __name__, recipe.model_dump(mode="json"), str(path), resume=True)
    return _on_all_cores(request, recipe, examples)


def _on_all_cores(request: Request, recipe: Recipe, examples: Examples | None) -> Run:
    return on_all_cores(
        request,
        recipe.trainer,
        lambda: trained_parameters(build_method(recipe)),
        lambda place: run_request(request, place, examples),
    )


def run_request(request: Request, place: Place | None = None, examples: Examples | None = None) -> Run:
    """Train in this process. place: its rank among the processes that were started for the request."""
    recipe = Recipe.parse(request.recipe)
    fabric = joined(request, recipe.trainer, recipe.monitor, place)
    if request.resume:
        return _resume(fabric, recipe, Path(request.out), examples)
    return _pretrain(fabric, recipe, request, examples)


def _pretrain(fabric: Fabric, recipe: Recipe, request: Request, examples: Examples | None) -> Run:
    """Everything that can fail is done before the folder is created."""
    out, init = Path(request.out), request.init
    method = build_method(recipe)
    source = _open_data(recipe, method)
    recipe = resolve(recipe, len(source), fabric.device, fabric.world_size, method.backbone.architecture.init)
    if recipe.trainer.minutes is not None:
        seconds = _seconds_per_step(fabric, recipe, source, out)
        recipe = recipe.model_copy(update={"trainer": limited_to(recipe.trainer, seconds)})
    if init is not None:
        loaded = load_weights_into(method.backbone, init.source, **init.options)
        method.backbone_was_loaded()
        fabric.print(f"Started from {init.source}: {loaded}")
        if loaded.pixels not in (None, (method.mean, method.std)):
            fabric.print(f"Its pixels had mean and std {loaded.pixels}; set data.mean and data.std to these, if unsure")
    job = Pretraining(recipe, source, method, Run(out), examples)
    training = Training(fabric, job)
    collectives.on_first_process(lambda: job.open_probe(fabric.device))
    with new_run(fabric, out, recipe, request.overwrite):
        return training.train(0)


def _resume(fabric: Fabric, recipe: Recipe, path: Path, examples: Examples | None) -> Run:
    with locked(path):
        run = open_run(path)
        collectives.on_first_process(run.check_files)
        state = last_intact(fabric, run)
        method = build_method(recipe)
        source = _open_data(recipe, method)
        check_data(source, recipe.data.path, state.facts, path)
        check_recipe(recipe, state.facts, path / "config.yaml")
        check_frozen_encoders(method, state.facts, path)
        recipe = resolve(recipe, len(source), fabric.device, fabric.world_size, method.backbone.architecture.init)
        checkpoint.check_fit(state.method, method.state_dict())
        training = None
        if state.step < state.facts.steps:
            job = Pretraining(recipe, source, method, run, examples)
            training = Training(fabric, job)
            collectives.on_first_process(lambda: job.open_probe(fabric.device))
        if collectives.on_first_process(lambda: _repaired(run, recipe, state)):
            fabric.print(f"Exported encoder.safetensors again, from the checkpoint of step {state.step}")
        if training is None:
            fabric.print(f"{path} is finished: all {state.step} steps are done")
            return run
        training.restore(state)
        return training.train(state.step)


def _repaired(run: Run, recipe: Recipe, state: checkpoint.State) -> bool:
    """Make the folder that of a run that has just saved this state; returns whether the encoder was exported again."""
    checkpoint.set_aside_after(state.step, run.checkpoints)
    return export_if_stale(run, recipe, state)


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
    assert isinstance(recipe.data.workers, int)
    stay = processes > 1 or trainer.accumulate > 1
    with training_threads(device, trained, processes, recipe.data.workers):
        own = trainer.batch_size // processes
        cost = step_cost(method.to(device), recipe.optim, own, trainer.accumulate, gradients_stay=stay)
    if trainer.minutes is not None:
        recipe = recipe.model_copy(update={"trainer": limited_to(trainer, cost.seconds)})
    memory = estimate_memory(recipe, trainer.batch_size // processes // trainer.accumulate, gradients_stay=stay)
    return Plan(recipe, len(source), trained, cost, device, processes, memory)


def profile(recipe: Recipe, steps: int) -> Profile:
    """Time the parts of a few steps in this process."""
    fabric = launch(recipe.trainer.model_copy(update={"devices": 1, "nodes": 1}))
    method = build_method(recipe)
    source = _open_data(recipe, method)
    recipe = resolve(recipe, len(source), fabric.device, 1, method.backbone.architecture.init)
    return profile_steps(recipe, method, source, fabric.device, steps)


def _seconds_per_step(fabric: Fabric, recipe: Recipe, source: Source, out: Path) -> float:
    """Measured on a copy of the method that is then discarded."""
    trial = recipe.model_copy(update={"trainer": recipe.trainer.model_copy(update={"steps": TRIAL_STEPS})})
    return seconds_per_step(fabric, out, lambda run: Pretraining(trial, source, build_method(recipe), run))


def _open_data(recipe: Recipe, method: Method) -> Source:
    """The images; with masks only if a view needs them, because reading masks takes time."""
    labelled = any(view.segments for view in method.views)
    return (open_segmented if labelled else open_source)(recipe.data.path, recipe.data.split)
