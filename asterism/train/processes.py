"""Training on a CPU with several processes on this machine.

A small network has small matrices. Threads that share a matrix synchronise after every operation; processes that share
a batch synchronise once per step, to average their gradients (`benchmarks/threads.py` measures both). The losses are
those of a single process, up to the order of summation.

The first process is the one that the user started: a command, a script or a notebook. The others run
`python -m asterism.train.processes`, read their task from standard input, and end when the first one ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from lightning_fabric.plugins.environments.cluster_environment import ClusterEnvironment

from asterism.errors import Interrupted, UserError
from asterism.ops import collectives

_PATIENCE = 10.0  # seconds that the other processes get to exit before they are killed


@dataclass(frozen=True)
class Task:
    """The run that all processes start, or resume."""

    recipe: Mapping[str, Any]
    out: str
    init: str | None = None
    overwrite: bool = False
    resume: bool = False


@dataclass
class Place(ClusterEnvironment):
    """The rank of a process among those on this machine, as Fabric's cluster environment."""

    rank: int
    size: int
    port: int

    @property
    def creates_processes_externally(self) -> bool:
        return True

    @property
    def main_address(self) -> str:
        return "127.0.0.1"

    @property
    def main_port(self) -> int:
        return self.port

    @staticmethod
    def detect() -> bool:
        return False

    def world_size(self) -> int:
        return self.size

    def set_world_size(self, size: int) -> None:
        assert size == self.size

    def global_rank(self) -> int:
        return self.rank

    def set_global_rank(self, rank: int) -> None:
        assert rank == self.rank

    def local_rank(self) -> int:
        return self.rank

    def node_rank(self) -> int:
        return 0


@contextlib.contextmanager
def started_processes(task: Task, size: int) -> Iterator[Place]:
    """Start the other `size - 1` processes, give the place of this one, and end the others on exit."""
    port = _free_port()
    others = [_start(task, Place(rank, size, port)) for rank in range(1, size)]
    try:
        yield Place(0, size, port)
    except RuntimeError as error:
        if exit_reason := _exit_reason(others):
            raise UserError(
                f"a training process died ({exit_reason}), most likely because memory ran out. Set trainer.devices=1, "
                "a smaller trainer.batch_size or a larger trainer.accumulate; the last checkpoint is valid"
            ) from error
        raise
    finally:
        had_joined = collectives.leave_processes()
        _end(others, _PATIENCE if had_joined else 0.0)


def _start(task: Task, place: Place) -> subprocess.Popen[bytes]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)}
    process = subprocess.Popen(
        [sys.executable, "-m", "asterism.train.processes"], stdin=subprocess.PIPE, env=environment
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps({"task": asdict(task), "place": asdict(place)}).encode())
    process.stdin.close()
    return process


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _exit_reason(others: list[subprocess.Popen[bytes]]) -> str | None:
    """Why one of the processes died, if one did. Waits, because a connection may close before its process exits."""
    for process in others:
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = process.wait(timeout=1.0)
            if code:
                return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    return None


def _end(others: list[subprocess.Popen[bytes]], patience: float) -> None:
    for process in others:
        try:
            process.wait(timeout=patience)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _main() -> None:
    """One of the other processes. It prints no errors, because the first process does."""
    from asterism.train.start import run_task

    values = json.load(sys.stdin)
    task, place = Task(**values["task"]), Place(**values["place"])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the first one decides for all
    with contextlib.suppress(UserError, Interrupted, KeyboardInterrupt):
        run_task(task, place)
    collectives.leave_processes()


if __name__ == "__main__":
    _main()
