"""Starting, resuming and planning runs, on the processes that suit the machine."""

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
from asterism.train.processes import Order, Place, beside_others
from asterism.train.recipe import Recipe
from asterism.train.resolve import limited_to, resolve
from asterism.train.run import Run, check_free, create_run, open_run

_TRIAL_STEPS = 8  # timed before a run whose length is given in minutes


def pretrain(recipe: Recipe, out: Path, *, init: str | None = None, overwrite: bool = False) -> Run:
    """A new run in the folder `out`, with a backbone that starts from the weights `init` if given."""
    return _on_all_cores(Order(recipe.model_dump(mode="json"), str(out), init, overwrite))


def resume(path: Path, overrides: tuple[str, ...] = ()) -> Run:
    """Resume from the last checkpoint of a run; the result is the same as if it had never been interrupted."""
    run = open_run(path)
    _check_resumable(overrides)
    recipe = Recipe.parse(with_overrides(run.config, overrides))
    return _on_all_cores(Order(recipe.model_dump(mode="json"), str(path), resume=True))


def _on_all_cores(order: Order) -> Run:
    recipe = Recipe.parse(order.recipe)
    if not starts_processes(recipe.trainer):
        return carry_out(order)
    if not order.resume:
        check_free(Path(order.out), order.overwrite)
    count = process_count(recipe.trainer, trained_parameters(build_method(recipe)))
    if count == 1:
        return carry_out(order)
    with beside_others(order, count) as place:
        return carry_out(order, place)


def carry_out(order: Order, place: Place | None = None) -> Run:
    """What each process of a run does. `place` is its place among those that were started for this order."""
    recipe = Recipe.parse(order.recipe)
    fabric = launch(recipe.trainer, place)
    if order.resume:
        return _resume(fabric, recipe, Path(order.out))
    return _pretrain(fabric, recipe, Path(order.out), order.init, order.overwrite)


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
            f"{recipe.data.path} holds {len(source)} images, but the run was started on {state.facts['images']}; "
            f"start a new run from its weights: --init {path}"
        )
    if state.step >= state.facts["steps"]:
        fabric.print(f"{path} is finished: all {state.step} steps are done")
        return run
    training = Training(fabric, recipe, source, method, run)
    checkpoint.restore(state, training.method, training.optimizer)
    return training.train(state.step)


def plan(recipe: Recipe) -> Plan:
    """What a run would take on one of the devices here, without starting it."""
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
    """Measured on the first steps of the run, made on a copy that is thrown away."""
    trial = recipe.model_copy(update={"trainer": recipe.trainer.model_copy(update={"steps": _TRIAL_STEPS})})
    with scratch_folder(out) as folder:
        seconds = Training(fabric, trial, source, build_method(recipe), Run(folder)).time_steps()
    return float(collectives.all_reduce_max(torch.tensor(seconds, device=fabric.device)))


def _open_data(recipe: Recipe, method: Method) -> Source:
    """The images; with masks only if a view asks for labels, as reading those takes time."""
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
    """Only what does not change the result may differ when a run is resumed."""
    for override in overrides:
        key = override.partition("=")[0]
        if key not in _RESUMABLE and not key.startswith(("checkpoint.", "monitor.")):
            raise UserError(
                f"{key} cannot change when a run is resumed; allowed are {', '.join(_RESUMABLE)}, checkpoint.* and "
                "monitor.*. For other changes start a new run from its weights with --init"
            )
