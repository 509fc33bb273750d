"""Scripts for trials that are too large for this machine: one per trial, for torchrun or SLURM.

A script that is started again resumes its run. When all are done, `asterism compare` on the same folder collects
the results.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from asterism.config import write_yaml
from asterism.errors import UserError
from asterism.extras.studies.plan import (
    Command,
    Place,
    Trial,
    evaluate_command,
    pretrain_command,
    resume_command,
)
from asterism.extras.studies.records import check_specifications, write_record
from asterism.extras.studies.study import StudyConfig
from asterism.files import write_text
from asterism.train.recipe import Recipe

Launcher = Literal["torchrun", "slurm"]
LAUNCHERS: tuple[Launcher, ...] = ("torchrun", "slurm")


@dataclass(frozen=True)
class Machines:
    """The resources of each trial."""

    launcher: Launcher
    devices: int = 8  # GPUs per node
    nodes: int = 1


def write_scripts(
    study: StudyConfig, trials: Sequence[Trial], recipes: dict[str, Recipe], place: Place, machines: Machines
) -> Path:
    """Write the study, a script per trial, and one that starts them all in order; returns the last."""
    measured = [trial.name for trial in trials if trial.budget is not None and trial.budget.is_measured]
    if measured:
        raise UserError(
            f"{measured[0]}: a time budget is converted to steps on the machine that trains, which a script cannot do; "
            "give steps, epochs or images, or run `asterism compare` on that machine"
        )
    if machines.launcher == "torchrun" and machines.nodes > 1:
        raise UserError("--nodes needs --launch slurm; torchrun is started by hand on each node")
    if any(character in str(place.folder) for character in "\n\r"):
        raise UserError(f"--out {str(place.folder)!r} contains a line break, which would end a line of the scripts")
    check_specifications(trials, place)
    write_text(place.study, write_yaml(study))  # first: a folder with scripts but no study is refused later
    for trial in trials:
        length = [] if trial.budget is None else trial.budget.overrides(recipes[trial.run])
        write_text(place.script(trial.name), _script(study, trial, length, place, machines))
        write_record(place, trial, {})
    start = place.folder / "scripts" / "start.sh"
    write_text(start, _start(trials, place, machines))
    return start


def _script(study: StudyConfig, trial: Trial, length: Sequence[str], place: Place, machines: Machines) -> str:
    lines = ["#!/bin/bash", *_resources(trial, place, machines), "set -e", f"cd {shlex.quote(str(Path.cwd()))}"]
    if trial.is_trained:
        shape = [f"trainer.devices={machines.devices}", f"trainer.nodes={machines.nodes}"]
        new = pretrain_command(trial, place, length, shape)
        lines += [
            f"if [ -e {shlex.quote(str(place.run(trial.name) / 'checkpoints' / 'last'))} ]; then",
            f"  {_launched(resume_command(trial, place), machines)}",
            "else",
            f"  {_launched([*new, '--overwrite'], machines)}",
            "fi",
        ]
    lines += [shlex.join(["python", "-m", "asterism", *evaluate_command(trial, place, e)]) for e in study.evaluations]
    return "\n".join(lines) + "\n"


def _resources(trial: Trial, place: Place, machines: Machines) -> list[str]:
    if machines.launcher != "slurm":
        return []
    nodes, tasks = (machines.nodes, machines.devices) if trial.is_trained else (1, 1)
    return [
        f"#SBATCH --job-name={trial.name}",
        f"#SBATCH --nodes={nodes}",
        f"#SBATCH --ntasks-per-node={tasks}",
        f"#SBATCH --gpus-per-node={tasks}",
        "#SBATCH --requeue",
        "#SBATCH --open-mode=append",
        f"#SBATCH --output={place.log(trial.name)}",
    ]


def _launched(command: Command, machines: Machines) -> str:
    if machines.launcher == "slurm":
        return shlex.join(["srun", "python", "-m", "asterism", *command])
    return shlex.join(["torchrun", "--standalone", f"--nproc-per-node={machines.devices}", "-m", "asterism", *command])


def _start(trials: Sequence[Trial], place: Place, machines: Machines) -> str:
    """With SLURM, a trial waits for the one whose weights it needs; with torchrun, trials run one after the other."""
    lines = ["#!/bin/bash", f"cd {shlex.quote(str(Path.cwd()))}", f"mkdir -p {shlex.quote(str(place.folder / 'logs'))}"]
    if machines.launcher == "torchrun":
        lines += [f"bash {shlex.quote(str(place.script(trial.name)))}" for trial in trials]
        return "\n".join(lines) + "\n"
    jobs = {trial.name: f"job{number}" for number, trial in enumerate(trials)}
    for trial in trials:
        waits = f'--dependency="afterok:${jobs[trial.after]}" ' if trial.after else ""
        lines.append(f"{jobs[trial.name]}=$(sbatch --parsable {waits}{shlex.quote(str(place.script(trial.name)))})")
    return "\n".join(lines) + "\n"
