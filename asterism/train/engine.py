"""Starts and resumes runs of every kind (`asterism.train.kind`), in as many processes as suit the machine.

`start` and `resume` describe a run in a `Request`. Each process opens its data and network, and carries it out:

    _on_all_cores   joins the processes of torchrun or srun, or starts those that suit this machine
    carry_out       in each process: checks the run's folder, and that all processes were given the same run
    _started        resolves the recipe, creates the folder, trains
    _resumed        checks that it is the same run, restores the last intact checkpoint, repairs the folder, trains
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from lightning_fabric import Fabric

from asterism.config import Config
from asterism.errors import UserError
from asterism.lock import check_unowned, folder_lock, is_owned, owned
from asterism.ops import collectives
from asterism.ops.launched import Place, launched
from asterism.ops.vigil import end_this_process
from asterism.train import checkpoint
from asterism.train.cores import check_devices, process_count
from asterism.train.kind import F, Init, Kind, Opened, R, Request
from asterism.train.launch import ALONE, launch
from asterism.train.loop import Diverged, Training
from asterism.train.processes import backend, resumable, started_processes
from asterism.train.resuming import (
    check_data,
    check_equal_everywhere,
    check_frozen_encoders,
    check_overrides,
    check_recipe,
    check_unedited,
)
from asterism.train.run import Run, check_free, create_run, empty
from asterism.train.trackers.of_run import check_packages
from asterism.viz.console import visible


def start(
    kind: Kind[R, F],
    recipe: R,
    out: Path,
    *,
    init: Init | None = None,
    overwrite: bool = False,
    began: float | None = None,
) -> F:
    """Train a new run in the folder `out`; its network starts from the weights `init`, if given.

    began: from when its minutes count, by `time.monotonic`; None: now.
    """
    began = time.monotonic() if began is None else began
    return _on_all_cores(Request(kind, recipe, out, init, overwrite, began=began))


def resume(
    kind: Kind[R, F],
    path: Path,
    overrides: Sequence[str] = (),
    began: float | None = None,
) -> F:
    """Resume a run from its last checkpoint; the result is the same as without the interruption, if it has steps."""
    began = time.monotonic() if began is None else began
    run = kind.open_run(path)
    check_overrides(overrides)
    recipe = run.read_to_resume(kind.recipe, overrides)
    check_unedited(recipe, run)
    return _on_all_cores(Request(kind, recipe, path, resume=True, began=began))


def carry_out(
    request: Request[R, F],
    place: Place = ALONE,
    opened: Opened[R, F] | None = None,
) -> F:
    """Train in this process. place: where it is among those that have met; opened: if it already is."""
    fabric = launch(request.recipe.trainer, place)
    request = _after_restart(request, place)
    collectives.on_first_process(lambda: _check_place(request))
    collectives.on_first_process(lambda: check_packages(request.recipe.monitor))
    if opened is None:
        opened = request.open()
    check_equal_everywhere(opened.recipe, opened.source, request)
    return (_resumed if request.resume else _started)(fabric, request, opened)


def _on_all_cores(request: Request[R, F]) -> F:
    """Carry out the request in this process, and in as many others as suit the devices, the cores and the network."""
    place, trainer = launched(), request.recipe.trainer
    if place is not None and place.size > 1:
        with collectives.explained_loss(lambda: resumable(request)):
            collectives.join(place, partial(_end_without, request), backend(trainer))
            return carry_out(request, place)
    if place is None:
        check_devices(trainer)
    _check_place(request)
    opened = request.open()
    request = replace(request, recipe=opened.recipe)
    count = 1 if place is not None else process_count(opened.recipe.trainer, opened.parameters)
    if count == 1:
        return _alone(request, opened)
    with started_processes(request, count) as own:
        return carry_out(request, own, opened)


def _end_without(request: Request[R, F], ranks: Sequence[int], reason: str) -> None:
    end_this_process(f"{reason}. {resumable(request)}")


def _alone(request: Request[R, F], opened: Opened[R, F]) -> F:
    try:
        return carry_out(request, ALONE, opened)
    finally:
        collectives.leave_processes()  # a group of one


def _after_restart(request: Request[R, F], place: Place) -> Request[R, F]:
    """What is left to do for processes that torchrun has restarted: the run is its own, so it goes on where it was."""
    run = request.kind.run(request.out)
    if request.resume or place.attempt == 0 or not collectives.on_first_process(run.is_of_this_launcher):
        return request
    if not collectives.on_first_process(lambda: bool(checkpoint.steps(run.checkpoints))):
        return replace(request, overwrite=True)
    recipe = run.read_to_resume(request.kind.recipe, ())
    return replace(request, recipe=recipe, init=None, resume=True)


def _check_place(request: Request[R, F]) -> None:
    """Refuse a folder that another process writes, or that must not be overwritten, before anything takes time."""
    check_unowned(folder_lock(request.out), request.out)
    if not request.resume:
        check_free(request.out, request.overwrite)


def _started(fabric: Fabric, request: Request[R, F], opened: Opened[R, F]) -> F:
    """Everything that can fail is done before the folder is created."""
    out, run = request.out, request.kind.run(request.out)
    recipe = opened.resolved(fabric.device, fabric.world_size)
    job = opened.job(recipe, run, fabric)
    for line in opened.started_from():
        fabric.print(visible(line))
    training = Training(fabric, job, request.began)
    with _new_run(fabric, out, recipe, request.overwrite):
        training.train()
    return run


def _resumed(fabric: Fabric, request: Request[R, F], opened: Opened[R, F]) -> F:
    path, recipe, run = request.out, opened.recipe, request.kind.run(request.out)
    with _locked(path):
        collectives.on_first_process(run.check_files)
        state = _last_intact(fabric, run)
        check_data(opened.source, recipe.data.path, state.facts, path)
        check_recipe(recipe, state.facts, path / "config.yaml")
        job = opened.job(opened.resolved(fabric.device, fabric.world_size), run, fabric)
        check_frozen_encoders(job.facts(), state.facts, recipe, path)
        checkpoint.check_fit(state.method, job.learner.state_dict())
        training = Training(fabric, job, request.began)
        training.restore(state)
        collectives.on_first_process(lambda: checkpoint.set_aside_after(state.step, run.checkpoints))
        collectives.on_first_process(lambda: checkpoint.prune(run.checkpoints, recipe.checkpoint))
        job.repair(state, training.progress.is_over, fabric.print)
        if training.is_finished:
            fabric.print(f"{path} is finished: its {state.step} steps are done")
        else:
            training.train()
        return run


@contextlib.contextmanager
def _new_run(fabric: Fabric, out: Path, recipe: Config, overwrite: bool) -> Iterator[None]:
    """The folder of a new run, owned and with its recipe.

    If an error ends the run before its first checkpoint, the folder is removed, because nothing can be resumed; unless
    its curves or the list of bad images show what went wrong.
    """
    with _new_folder(out):
        collectives.on_first_process(lambda: check_free(out, overwrite))
        try:
            collectives.on_first_process(lambda: create_run(out, recipe))
            yield
        except Diverged:
            raise
        except BaseException:
            if fabric.is_global_zero and is_owned(folder_lock(out)) and not Run(out).has_results():
                empty(out)
            raise


@contextlib.contextmanager
def _new_folder(folder: Path) -> Iterator[None]:
    """Create the folder and own it; it is removed, with parents that were created for it, if it is empty in the end."""
    first = collectives.rank() == 0
    missing = [place for place in (folder, *folder.parents) if first and not place.exists()]
    try:
        if first:
            folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder):
            yield
    finally:
        for place in missing:
            with contextlib.suppress(OSError):
                place.rmdir()


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """The first process owns the folder; if it cannot, all processes raise."""
    with contextlib.ExitStack() as stack:

        def take() -> None:
            stack.enter_context(owned(folder_lock(folder), folder))

        collectives.on_first_process(take)
        yield


def _last_intact(fabric: Fabric, run: Run) -> checkpoint.State:
    """The last intact checkpoint; the first process looks for it."""
    path, problems = collectives.on_first_process(lambda: checkpoint.newest_intact(run.checkpoints))
    for problem in problems:
        fabric.print(visible(f"{problem}. Resuming from {path.name}"))
    try:
        return checkpoint.load(path)
    except checkpoint.Damaged as error:
        raise UserError(f"cannot read the checkpoint {path}: {error}") from None
