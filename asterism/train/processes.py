"""Training on a CPU by several processes of this machine, started from here.

A small network has small matrices. Threads that share one of them wait for each other after every operation; processes
that share a batch wait for each other once per step, to average their gradients (`benchmarks/threads.py` measures
both). The losses are those of one process, up to the order in which numbers are added.

The first process is the one that the user started, in whatever way: a command, a script, a notebook. The others run
`python -m asterism.train.processes`, read from their standard input what to do, and end when the first one does.
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

_PATIENCE = 10.0  # seconds in which the others may end by themselves


@dataclass(frozen=True)
class Order:
    """What all processes are to do: start a run, or go on with one (`resume`)."""

    recipe: Mapping[str, Any]
    out: str
    init: str | None = None
    overwrite: bool = False
    resume: bool = False


@dataclass
class Place(ClusterEnvironment):
    """The place of one process among those of this machine, in the form that Fabric asks for."""

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
def beside_others(order: Order, size: int) -> Iterator[Place]:
    """The first of `size` processes; the others live as long as this does."""
    port = _free_port()
    others = [_start(order, Place(rank, size, port)) for rank in range(1, size)]
    try:
        yield Place(0, size, port)
    except RuntimeError as error:
        if fate := _fate(others):
            raise UserError(
                f"a training process died ({fate}). Most often memory ran out: set trainer.devices=1, a smaller "
                "trainer.batch_size or a larger trainer.accumulate; the last checkpoint is good"
            ) from error
        raise
    finally:
        had_joined = collectives.leave_processes()
        _end(others, _PATIENCE if had_joined else 0.0)


def _start(order: Order, place: Place) -> subprocess.Popen[bytes]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)}
    process = subprocess.Popen(
        [sys.executable, "-m", "asterism.train.processes"], stdin=subprocess.PIPE, env=environment
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps({"order": asdict(order), "place": asdict(place)}).encode())
    process.stdin.close()
    return process


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _fate(others: list[subprocess.Popen[bytes]]) -> str | None:
    """How one ended that should not have. It may have closed its connection a moment before its end."""
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
    """One of the others. What the first process tells the user need not be said twice."""
    from asterism.train.start import carry_out

    values = json.load(sys.stdin)
    order, place = Order(**values["order"]), Place(**values["place"])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the first process decides, and the others hear
    with contextlib.suppress(UserError, Interrupted, KeyboardInterrupt):
        carry_out(order, place)
    collectives.leave_processes()


if __name__ == "__main__":
    _main()
