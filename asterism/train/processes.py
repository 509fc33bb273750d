"""Training on a CPU with several processes on this machine.

A small network has small matrices. Threads that share a matrix synchronise after every operation; processes that share
a batch synchronise once per step, to average their gradients (`lab/benchmarks/threads.py`). They meet on the
loopback interface and exchange tensors through memory that only they hold. The losses are those of a single process, up
to the order of summation.

The first process is the one that the user started: a command, a script or a notebook. The others run
`python -m asterism.train.processes`, read the request from standard input, and end when the first one ends. Each sends
a heartbeat through a pipe. The first process ends one that is silent, because all would wait for it; a process
that can no longer send its own ends too: the first one is gone.
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
from dataclasses import asdict, dataclass
from typing import Any

from lightning_fabric.plugins.environments.cluster_environment import ClusterEnvironment

from asterism.errors import Interrupted, UserError, explain_system_error
from asterism.ops import collectives
from asterism.ops.shared_memory import Ends, open_ends
from asterism.train import checkpoint
from asterism.train.kind import Request

_PATIENCE = 20.0  # seconds that the other processes get to exit before they are killed
_BEAT = 1.0  # seconds between heartbeats
_SILENCE = 30.0  # seconds without a heartbeat after which a process is ended
_USER_ERROR = 2  # exit code


@dataclass
class Place(ClusterEnvironment):
    """The rank of a process among those on this machine, as Fabric's cluster environment."""

    rank: int
    size: int
    port: int
    ends: Ends  # of the memory that the processes share
    listener: int | None = None  # in the first process: the descriptor of the socket that listens at the port

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


@dataclass
class _Other:
    """Another process, and the end of the pipe at which its heartbeats arrive."""

    rank: int
    process: subprocess.Popen[bytes]
    heartbeats: int
    last: float | None = None  # time of the last heartbeat; None before the first
    silent: bool = False  # sent no heartbeat, and was ended for it


@contextlib.contextmanager
def started_processes(request: Request[Any, Any], size: int) -> Iterator[Place]:
    """Start the other `size - 1` processes, give the place of this one, and end the others on exit."""
    others: list[_Other] = []
    watch = _Watch(others)
    with socket.socket() as meeting, contextlib.ExitStack() as held:
        meeting.bind(("127.0.0.1", 0))
        meeting.listen(size)
        port = int(meeting.getsockname()[1])
        first, *rest = open_ends(size)
        held.callback(first.close)
        try:
            with contextlib.ExitStack() as passed_on:
                for ends in rest:
                    passed_on.callback(ends.close)
                for rank, ends in enumerate(rest, start=1):
                    others.append(_start(request, Place(rank, size, port, ends)))
            watch.wait_until_ready()
            watch.start()
            yield Place(0, size, port, first, os.dup(meeting.fileno()))
        except RuntimeError as error:
            reason = _exit_reason(others)
            if reason is None:
                raise
            raise UserError(f"{reason}. {_resumable(request)}") from error
        finally:
            had_joined = collectives.leave_processes()
            watch.stop()
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
    if request.resume or _has_checkpoint(request):
        return f"The last checkpoint is good; resume with: asterism {request.kind.name} --resume {request.out}"
    return "No checkpoint had been saved"


def _has_checkpoint(request: Request[Any, Any]) -> bool:
    return bool(checkpoint.steps(request.out / "checkpoints"))


def _start(request: Request[Any, Any], place: Place) -> _Other:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)}
    receiver, sender = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "asterism.train.processes"],
        stdin=subprocess.PIPE,
        env=environment,
        pass_fds=(sender, place.ends.memory, *place.ends.wires),
    )
    os.close(sender)
    os.set_blocking(receiver, False)
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it died at once, which is noticed where its first heartbeat is awaited
        process.stdin.write(
            json.dumps({"request": request.as_json(), "place": asdict(place), "heartbeats": sender}).encode()
        )
        process.stdin.close()
    return _Other(place.rank, process, receiver)


class _Watch:
    """A thread of the first process that reads the heartbeats of the others."""

    def __init__(self, others: Sequence[_Other]) -> None:
        self._others = others
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="heartbeats")

    def wait_until_ready(self) -> None:
        """Wait for the first heartbeat of every process; raises if one dies before."""
        while any(other.last is None for other in self._others):
            select.select([other.heartbeats for other in self._others if other.last is None], [], [], 0.2)
            self._read()
            if any(other.process.poll() is not None for other in self._others):
                raise RuntimeError("a process ended before it was ready")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        before = time.monotonic()
        while not self._stopped.wait(_BEAT):
            now = time.monotonic()
            self._read()
            for other in self._others:
                if now - before > 5 * _BEAT:  # this process was suspended itself
                    other.last = now
                elif other.last is not None and now - other.last > _SILENCE and other.process.poll() is None:
                    other.silent = True
                    other.process.kill()
            before = now

    def _read(self) -> None:
        for other in self._others:
            with contextlib.suppress(BlockingIOError):
                if os.read(other.heartbeats, 4096):
                    other.last = time.monotonic()


def _exit_reason(others: Sequence[_Other]) -> str | None:
    """Why one of the processes died, if one did. Waits, because a connection may close before its process exits."""
    deadline = time.monotonic() + 3 * _BEAT
    while time.monotonic() < deadline:
        for other in others:
            if other.silent:
                return (
                    f"training process {other.rank} did not respond for {_SILENCE:.0f} seconds and was ended: it was "
                    "stopped, or the machine is overloaded"
                )
            code = other.process.poll()
            if code:
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
        os.close(other.heartbeats)


class _Heart:
    """A thread of another process that sends heartbeats, and ends the process when the first one is gone."""

    def __init__(self, pipe: int, request: Request[Any, Any]) -> None:
        self._pipe, self._request = pipe, request
        self._parent = os.getppid()
        self._last_words = threading.Lock()
        threading.Thread(target=self._run, daemon=True, name="heartbeats").start()

    def end_if_alone(self) -> None:
        """If the first process has ended, say so and end this one."""
        if os.getppid() == self._parent:
            return
        with self._last_words:
            message = f"The first training process has ended, so this one ends too. {_resumable(self._request)}"
            print(f"Error: {message}", file=sys.stderr, flush=True)
            os._exit(_USER_ERROR)

    def _run(self) -> None:
        while True:
            try:
                os.write(self._pipe, b".")
            except OSError:  # the reader is gone
                self.end_if_alone()
                return
            time.sleep(_BEAT)


def _main() -> None:
    """One of the other processes. It prints no errors, because the first process does, unless that one is gone."""
    from asterism.train.engine import carry_out  # which starts processes itself

    values = json.load(sys.stdin)
    request = Request.from_json(values["request"])
    place = Place(**values["place"] | {"ends": Ends(**values["place"]["ends"])})
    heart = _Heart(values["heartbeats"], request)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the first one decides for all
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
        time.sleep(_BEAT)  # a connection may close before its process has ended
        heart.end_if_alone()
        sys.exit(_USER_ERROR)  # the first process says why


if __name__ == "__main__":
    _main()
