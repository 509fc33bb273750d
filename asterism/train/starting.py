"""What starting and resuming have in common for all kinds of runs: processes, locks, folders, the last checkpoint."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric

from asterism.config import Config
from asterism.errors import UserError
from asterism.files import scratch_folder
from asterism.lock import check_unowned, folder_lock, owned
from asterism.ops import collectives
from asterism.train import checkpoint
from asterism.train.cores import process_count, starts_processes
from asterism.train.job import Job
from asterism.train.launch import launch
from asterism.train.loop import Diverged, Training
from asterism.train.processes import Place, Request, explained_loss_of_processes, started_processes
from asterism.train.recipe import TrainerConfig
from asterism.train.run import Run, check_free, create_run, empty
from asterism.train.trackers.chosen import TrackersConfig, check_packages

TRIAL_STEPS = 8  # timed before a run whose length is given in minutes


def on_all_cores(
    request: Request, trainer: TrainerConfig, parameters: Callable[[], int], run: Callable[[Place | None], Run]
) -> Run:
    """Call `run` in this process and, on a CPU, in as many others as suit a network of this many trained parameters."""
    if not starts_processes(trainer):
        with explained_loss_of_processes():
            return _alone(run)
    check_place(request)
    count = process_count(trainer, parameters())
    if count == 1:
        return _alone(run)
    with started_processes(request, count) as place:
        return run(place)


def _alone(run: Callable[[Place | None], Run]) -> Run:
    try:
        return run(None)
    finally:
        if collectives.world_size() == 1:
            collectives.leave_processes()


def joined(request: Request, trainer: TrainerConfig, trackers: TrackersConfig, place: Place | None) -> Fabric:
    """This process as one of the run's, after checks of the run's folder and of the packages that it needs."""
    fabric = launch(trainer, place)
    collectives.on_first_process(lambda: check_place(request))
    collectives.on_first_process(lambda: check_packages(trackers))
    return fabric


def check_place(request: Request) -> None:
    """Refuse a folder that another process writes, or that must not be overwritten, before anything takes time."""
    out = Path(request.out)
    check_unowned(folder_lock(out), out)
    if not request.resume:
        check_free(out, request.overwrite)


@contextlib.contextmanager
def new_run(fabric: Fabric, out: Path, recipe: Config, overwrite: bool) -> Iterator[None]:
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
            if fabric.is_global_zero and not Run(out).has_results():
                empty(out)
            raise


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """The first process owns the folder; if it cannot, all processes raise."""
    with contextlib.ExitStack() as stack:

        def take() -> None:
            stack.enter_context(owned(folder_lock(folder), folder))

        collectives.on_first_process(take)
        yield


def last_intact(fabric: Fabric, run: Run) -> checkpoint.State:
    """The last intact checkpoint; the first process looks for it."""
    path, problems = collectives.on_first_process(lambda: checkpoint.newest_intact(run.checkpoints))
    for problem in problems:
        fabric.print(f"{problem}. Resuming from {path.name}")
    try:
        return checkpoint.load(path)
    except checkpoint.Damaged as error:
        raise UserError(f"cannot read the checkpoint {path}: {error}") from None


def seconds_per_step(fabric: Fabric, out: Path, trial: Callable[[Run], Job[Any]]) -> float:
    """Seconds per step, measured on a job of `TRIAL_STEPS` steps that is then discarded."""
    with scratch_folder(out) as folder:
        seconds = Training(fabric, trial(Run(folder))).time_steps()
    return float(collectives.all_reduce_max(torch.tensor(seconds, device=fabric.device)))


@contextlib.contextmanager
def _new_folder(folder: Path) -> Iterator[None]:
    """Create the folder and own it; it is removed, with parents that were created for it, if it is empty in the end."""
    first = collectives.rank() == 0
    missing = [place for place in (folder, *folder.parents) if first and not place.exists()]
    try:
        if first:
            folder.mkdir(parents=True, exist_ok=True)
        with locked(folder):
            yield
    finally:
        for place in missing:
            with contextlib.suppress(OSError):
                place.rmdir()
