"""How this process was started: by torchrun, by SLURM's srun, or by nothing of the kind.

Only what a launcher gives each of its processes counts. An `srun` on the path, an allocation in which a command runs
without it, or a part of torchrun's variables are no launcher.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from asterism.errors import UserError

_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
_SRUN = ("SLURM_PROCID", "SLURM_LOCALID")
_INTERACTIVE = ("bash", "interactive")  # names of jobs in which a person types commands
_PORTS = 15_000  # the first of those that SLURM's jobs meet at, 10,000 in all


@dataclass(frozen=True)
class Place:
    """The place of a process among those that work together, and where they meet."""

    rank: int
    size: int
    address: str
    port: int
    local_rank: int  # among the processes of its machine
    per_machine: int
    machines: int = 1
    listener: int | None = None  # in the first process: the descriptor of a socket that listens at the port
    attempt: int = 0  # how often torchrun has restarted its processes
    has_agent: bool = False  # torchrun's own process holds the meeting point, else the first process does
    launcher: str = "Asterism"

    @property
    def is_host(self) -> bool:
        return self.rank == 0 and not self.has_agent


def launched() -> Place | None:
    """The place that a launcher gave this process; None if there was none."""
    if all(name in os.environ for name in _TORCHRUN):
        return _of_torchrun()
    named = os.environ.get("SLURM_JOB_NAME") in _INTERACTIVE
    if all(name in os.environ for name in _SRUN) and _tasks() > 1 and not named:
        return _of_srun()
    return None


def _of_torchrun() -> Place:
    size, per_machine = _number("WORLD_SIZE"), _number("LOCAL_WORLD_SIZE", 1)
    return Place(
        rank=_number("RANK"),
        size=size,
        address=os.environ["MASTER_ADDR"],
        port=_number("MASTER_PORT"),
        local_rank=_number("LOCAL_RANK"),
        per_machine=per_machine,
        machines=max(1, size // per_machine),
        attempt=_number("TORCHELASTIC_RESTART_COUNT", 0),
        has_agent=os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        launcher="torchrun",
    )


def _of_srun() -> Place:
    machines = _number("SLURM_STEP_NUM_NODES", _number("SLURM_NNODES", 1))
    job, step = (int(os.environ.get(name, "0") or 0) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    return Place(
        rank=_number("SLURM_PROCID"),
        size=_tasks(),
        address=os.environ.get("MASTER_ADDR") or _first_machine(os.environ),
        port=_number("MASTER_PORT", _PORTS + (job + step) % 10_000),
        local_rank=_number("SLURM_LOCALID"),
        per_machine=-(-_tasks() // machines),
        machines=machines,
        launcher="srun",
    )


def _tasks() -> int:
    return _number("SLURM_STEP_NUM_TASKS", _number("SLURM_NTASKS", 1))


def _first_machine(environment: Mapping[str, str]) -> str:
    """The first of SLURM's list, such as `gpu[07-09,12],login`."""
    names = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_NODELIST") or "127.0.0.1"
    return re.sub(r"^([^,\[]*)(?:\[([^],-]*)[^]]*\])?([^,]*).*$", r"\1\2\3", names)


def _number(name: str, otherwise: int | None = None) -> int:
    text = os.environ.get(name)
    if text is None and otherwise is not None:
        return otherwise
    if text is None or not text.isdecimal():
        raise UserError(f"{name} = {text!r} in the environment must be a number, as torchrun and srun set it")
    return int(text)
