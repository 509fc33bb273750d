"""Training on a CPU with several processes on this machine.

A small network has small matrices. Threads that share a matrix synchronise after every operation; processes that share
a batch synchronise once per step, to average their gradients (`benchmarks/threads.py` measures both). They meet on the
loopback interface and train as several GPUs do. The losses are those of a single process, up to the order of summation.

The first process is the one that the user started: a command, a script or a notebook. The others run
`python -m asterism.train.processes`, read the request from standard input, and end when the first one ends. When a
process dies, its connections close, and the others end at their next exchange.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from asterism.errors import Interrupted, UserError, explain_system_error
from asterism.ops import collectives
from asterism.train import checkpoint
from asterism.train.kind import Request

_PATIENCE = 20.0  # seconds that the other processes get to exit before they are killed
_MOMENT = 1.0  # seconds: a connection may close before its process has exited
_USER_ERROR = 2  # exit code


@dataclass(frozen=True)
class Place:
    """The rank of a process among those on this machine, and where they meet."""

    rank: int
    size: int
    port: int
    listener: int | None = None  # in the first process: the descriptor of the socket that listens at the port


@dataclass(frozen=True)
class _Other:
    """Another process, and the end of a pipe where it says that it is ready."""

    process: subprocess.Popen[bytes]
    ready: int


@contextlib.contextmanager
def started_processes(request: Request[Any, Any], size: int) -> Iterator[Place]:
    """Start the other `size - 1` processes, give the place of this one, and end the others on exit."""
    others: list[_Other] = []
    with socket.socket() as meeting:
        meeting.bind(("127.0.0.1", 0))
        meeting.listen(size)
        port = int(meeting.getsockname()[1])
        try:
            for rank in range(1, size):
                others.append(_start(request, Place(rank, size, port)))
            if not all(os.read(other.ready, 1) for other in others):
                raise RuntimeError("a process ended before it was ready")
            yield Place(0, size, port, os.dup(meeting.fileno()))
        except RuntimeError as error:
            reason = _exit_reason(others)
            if reason is None:
                raise
            raise UserError(f"{reason}. {_resumable(request)}") from error
        finally:
            had_joined = collectives.leave_processes()
            _end(others, _PATIENCE if had_joined else 0.0)


@contextlib.contextmanager
def explained_loss_of_processes() -> Iterator[None]:
    """For processes started by torchrun or SLURM: a sentence instead of a traceback when another one has died."""
    try:
        yield
    except RuntimeError as error:
        if collectives.world_size() == 1 or not collectives.lost_connection(error):
            raise
        raise UserError(
            "lost the connection to another training process: it was killed, or its machine failed. The last "
            "checkpoint is good; resume with --resume"
        ) from error


def _resumable(request: Request[Any, Any]) -> str:
    if request.resume or checkpoint.steps(request.out / "checkpoints"):
        return f"The last checkpoint is good; resume with: asterism {request.kind.name} --resume {request.out}"
    return "No checkpoint had been saved"


def _start(request: Request[Any, Any], place: Place) -> _Other:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)}
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
    os.write(ready, b".")
    os.close(ready)
    try:
        with contextlib.suppress(UserError, Interrupted, KeyboardInterrupt):
            carry_out(request, place)
        collectives.leave_processes()
    except OSError as error:
        print(f"Error: {explain_system_error(error)}", file=sys.stderr, flush=True)
        sys.exit(_USER_ERROR)
    except RuntimeError as error:
        if not collectives.lost_connection(error):
            raise
        time.sleep(_MOMENT)
        if os.getppid() != first:
            message = f"The first training process has ended, so this one ends too. {_resumable(request)}"
            print(f"Error: {message}", file=sys.stderr, flush=True)
        sys.exit(_USER_ERROR)  # the first process says why


if __name__ == "__main__":
    _main(int(sys.argv[1]))
