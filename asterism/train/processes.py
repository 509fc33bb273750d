"""Training with several processes on this machine: one for each GPU, or several on a CPU.

A small network has small matrices. Threads that share a matrix synchronise after every operation; processes that share
a batch synchronise once per step, to average their gradients (`benchmarks/threads.py` measures both). They meet on the
loopback interface. The losses are those of a single process, up to the order of summation.

The first process is the one that the user started: a command, a script or a notebook. The others run
`python -m asterism.train.processes`, read the request from standard input, and end when the first one ends. When a
process dies, its connections close, and the others end at their next exchange.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from asterism.errors import Interrupted, UserError, explain_system_error
from asterism.ops import collectives
from asterism.ops.launched import Place
from asterism.ops.vigil import end_this_process, explained, patience
from asterism.train import checkpoint
from asterism.train.cores import device_type
from asterism.train.kind import Request
from asterism.train.recipe import TrainerConfig

_PATIENCE = 20.0  # seconds that the other processes get to exit before they are killed
_MOMENT = 1.0  # seconds: a connection may close before its process has exited
_ADDRESS = "127.0.0.1"
_QUIET = {"TORCH_CPP_LOG_LEVEL": "ERROR"}  # lost connections are explained here, without stacks of C++
_USER_ERROR = 2  # exit code


@dataclass(frozen=True)
class _Other:
    """Another process, and the end of a pipe where it says that it is ready."""

    process: subprocess.Popen[bytes]
    ready: int


@contextlib.contextmanager
def started_processes(request: Request[Any, Any], size: int) -> Iterator[Place]:
    """Start the other `size - 1` processes, join them, give the place of this one, and end the others on exit."""
    others: list[_Other] = []
    lost: list[str] = []

    def give_up(ranks: Sequence[int], reason: str) -> None:
        lost.append(reason)
        for rank in ranks:
            others[rank - 1].process.kill()  # which closes its connections, so that this process stops waiting

    with socket.socket() as meeting:
        meeting.bind((_ADDRESS, 0))
        meeting.listen(size)
        own = Place(0, size, _ADDRESS, int(meeting.getsockname()[1]), 0, size)
        try:
            for rank in range(1, size):
                others.append(_start(request, replace(own, rank=rank, local_rank=rank)))
            _await(others)
            own = replace(own, listener=os.dup(meeting.fileno()))
            collectives.join(own, give_up, backend(request.recipe.trainer))
            yield own
        except RuntimeError as error:
            reason = lost[0] if lost else _exit_reason(others)
            if reason is None:
                raise
            raise UserError(f"{reason}. {resumable(request)}") from error
        finally:
            had_joined = collectives.leave_processes()
            _end(others, _PATIENCE if had_joined and not lost else 0.0)


def backend(config: TrainerConfig) -> str:
    """What carries the data between processes."""
    return "nccl" if device_type(config) == "cuda" else "gloo"


def resumable(request: Request[Any, Any]) -> str:
    """What is left of a run that has ended too early."""
    if checkpoint.steps(request.out / "checkpoints"):
        return f"The last checkpoint is good; resume with: asterism {request.kind.name} --resume {request.out}"
    return "No checkpoint had been saved"


def _await(others: Sequence[_Other]) -> None:
    """Until all have started. One that ends before closes its pipe."""
    waiting = {other.ready: rank for rank, other in enumerate(others, 1)}
    deadline = time.monotonic() + patience().total_seconds()
    awaited = f"{len(others)} other training process{'es' * (len(others) > 1)}"
    with explained(f"{awaited} to start"):
        while waiting:
            ready, _, _ = select.select(list(waiting), [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                minutes = patience().total_seconds() / 60
                raise UserError(f"{awaited} did not start within {minutes:g} minutes (ASTERISM_PATIENCE)")
            for pipe in ready:
                if not os.read(pipe, 1):
                    raise RuntimeError("a process ended before it was ready")
                del waiting[pipe]


def _start(request: Request[Any, Any], place: Place) -> _Other:
    environment = os.environ | _QUIET | {"PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)}
    receiver, sender = os.pipe()
    command = [sys.executable, "-m", "asterism.train.processes", str(sender)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment, pass_fds=(sender,))
    os.close(sender)
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it died at once, which is noticed where its answer is awaited
        process.stdin.write(json.dumps({"request": request.as_json(), "place": asdict(place)}).encode())
        process.stdin.close()
    return _Other(process, receiver)


def _exit_reason(others: Sequence[_Other]) -> str | None:
    """Why one of the processes died, if one did."""
    deadline = time.monotonic() + 3 * _MOMENT
    while time.monotonic() < deadline:
        for other in others:
            if code := other.process.poll():
                return _death(code)
        time.sleep(0.05)
    return None


def _death(code: int) -> str:
    if code > 0:
        return f"a training process ended with exit code {code}; its message is above"
    return (
        f"a training process died (killed by {signal.Signals(-code).name}), most likely because memory ran out. Set "
        "trainer.devices=1, a smaller trainer.batch_size or a larger trainer.accumulate"
    )


def _end(others: Sequence[_Other], patience: float) -> None:
    for other in others:
        try:
            other.process.wait(timeout=patience)
        except subprocess.TimeoutExpired:
            other.process.kill()
            other.process.wait()
        os.close(other.ready)


def _main(ready: int) -> None:
    """One of the other processes. It prints no errors, because the first process does, unless that one is gone."""
    from asterism.train.engine import carry_out  # which starts processes itself

    first = os.getppid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the first one decides for all
    values = json.load(sys.stdin)
    request, place = Request.from_json(values["request"]), Place(**values["place"])
    threading.Thread(target=_end_with, args=(first, request), daemon=True).start()
    os.write(ready, b".")
    os.close(ready)
    try:
        with contextlib.suppress(UserError, Interrupted, KeyboardInterrupt):
            collectives.join(place, lambda ranks, reason: end_this_process(reason), backend(request.recipe.trainer))
            carry_out(request, place)
        collectives.leave_processes()
    except OSError as error:
        print(f"Error: {explain_system_error(error)}", file=sys.stderr, flush=True)
        sys.exit(_USER_ERROR)
    except RuntimeError as error:
        if not collectives.lost_connection(error):
            raise
        time.sleep(2 * _MOMENT)  # `_end_with` prints the reason if the first process has ended, else that one does
        sys.exit(_USER_ERROR)


def _end_with(first: int, request: Request[Any, Any]) -> None:
    """End this process soon after the first one, whatever it is doing."""
    while os.getppid() == first:
        time.sleep(_MOMENT)
    end_this_process(f"The first training process has ended, so this one ends too. {resumable(request)}")


if __name__ == "__main__":
    _main(int(sys.argv[1]))
