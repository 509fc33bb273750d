"""How many steps fit into a time budget, measured on the fastest part of a short run.

Other work on the machine only slows a run down, so its fastest stretch of steps is the best estimate of its speed.
Minutes are CPU time of one core, so they do not depend on what else the machine does meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path

from asterism.extras.studies.budget import Budget, steps_overrides
from asterism.extras.studies.plan import Command, Place, Trial, pretrain_command
from asterism.files import locked, scratch_folder, write_text
from asterism.train.run import Run

STRETCHES, STRETCH = 8, 10  # of steps


@dataclass(frozen=True)
class Speed:
    """The speed of the fastest stretch."""

    core_seconds_per_step: float
    seconds_per_step: float

    def steps(self, budget: Budget) -> int:
        """Steps that fit into a time budget; GPU hours are those of one GPU."""
        each = self.core_seconds_per_step if budget.kind == "core_minutes" else self.seconds_per_step
        return max(1, round(budget.seconds / each))


def measured_speed(trial: Trial, place: Place, execute: Callable[[Command], None], more: list[str]) -> Speed:
    """The speed of a run of the study, measured once for all seeds and lengths."""
    path = place.speed(trial.run)
    with locked(path.with_suffix(".lock")):
        if not path.is_file():
            write_text(path, json.dumps(asdict(_measure(trial, path, execute, more))))
    return Speed(**json.loads(path.read_text(encoding="utf-8")))


def _measure(trial: Trial, near: Path, execute: Callable[[Command], None], more: list[str]) -> Speed:
    short = [*steps_overrides(STRETCHES * STRETCH), f"monitor.log_every={STRETCH}", "monitor.knn=null"]
    with scratch_folder(near) as folder:
        elsewhere = Place(folder)
        command = pretrain_command(_from_scratch(trial), elsewhere, short, more)
        execute(command)
        return speed_of(Run(elsewhere.run(trial.name)))


def speed_of(run: Run) -> Speed:
    """Seconds per step in the fastest of the logged stretches."""
    batch = run.config["trainer"]["batch_size"]
    logged = [record for record in run.metrics() if "images_per_second" in record]
    ends = [0, *(record["step"] for record in logged)]
    lengths = [end - start for start, end in pairwise(ends)]
    return Speed(
        min(record["cpu_seconds"] / length for record, length in zip(logged, lengths, strict=True)),
        min(batch / record["images_per_second"] for record in logged),
    )


def _from_scratch(trial: Trial) -> Trial:
    """The trial without initial weights, which do not affect speed and may not exist yet."""
    return replace(trial, init=None, after=None)
