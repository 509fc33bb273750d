"""Worker processes that prepare batches: how they start, handle signals, and report a worker that dies."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import threading
import warnings
from collections.abc import Iterable, Iterator
from functools import partial
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from multiprocessing.queues import Queue
from multiprocessing.util import get_temp_dir
from typing import Any, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset

from asterism.errors import UserError
from asterism.ops.random import generator

_MOMENT = 2.0  # seconds

Request = TypeVar("Request")
Prepared = TypeVar("Prepared")


def prepare(
    tasks: Dataset[Prepared | UserError], requests: Iterable[Request], *, workers: int, prefetch: int, pin_memory: bool
) -> Iterator[Prepared]:
    """`tasks[request]` for every request, in order, computed by `workers` processes (0: by this one).

    Workers start once and run until the requests end. A `UserError` in a worker is raised here, without the worker's
    traceback.
    """
    check_count("data workers", workers)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This DataLoader will create")  # more workers than cores, as was asked for
        loader: DataLoader[Prepared | UserError] = DataLoader(
            tasks,
            batch_size=None,
            sampler=requests,
            num_workers=workers,
            prefetch_factor=prefetch if workers else None,
            worker_init_fn=_start_worker if workers else None,
            pin_memory=pin_memory,
            generator=generator(0),  # otherwise torch would draw from the global one
        )
    if workers:
        get_temp_dir()  # workers use it, and this process deletes it; each would leave one of its own when it is killed
    with _own_child_signal():
        iterator: Any = iter(loader)
    processes = list(getattr(iterator, "_workers", ()))
    with _ended_afterwards(processes):
        while True:
            try:
                prepared = next(iterator)
            except StopIteration:
                return
            except (RuntimeError, ConnectionError, EOFError) as error:
                exit_reason = _exit_reason(processes)
                if exit_reason is None:
                    raise
                raise UserError(
                    f"a data worker died ({exit_reason}). The usual cause is lack of memory: set data.workers below "
                    f"{workers} (of an evaluation: PROTOCOL.workers) or data.prefetch to 1, or give the machine (or "
                    "the container: its shared memory) more"
                ) from error
            if isinstance(prepared, UserError):
                raise prepared
            yield prepared


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_count(what: str, count: int) -> None:
    """Refuse more processes than this machine can start without choking."""
    most = max(16, 8 * cores())
    if count > most:
        raise UserError(f"{count} {what} are too many for {cores()} cores; choose at most {most}")


def _start_worker(number: int) -> None:
    """Ignore Ctrl-C and a scheduler's SIGTERM, which reach the whole process group.

    The main process handles them: it may finish a step and save, for which it needs its workers. They end with it.
    """
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # Else a batch that cannot be sent, for example because shared memory is full, is dropped and awaited forever.
    Queue._on_queue_feeder_error = staticmethod(_end_this_worker)  # type: ignore[attr-defined]


def _end_this_worker(error: Exception, batch: object) -> None:
    os._exit(1)


@contextlib.contextmanager
def _own_child_signal() -> Iterator[None]:
    """Keep torch from installing its SIGCHLD handler, which raises as soon as a worker dies, even in the middle of an
    update. Without it, the death is noticed at the next batch."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGCHLD"):
        yield
        return
    before = signal.getsignal(signal.SIGCHLD)
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, before if before is not None else signal.SIG_DFL)


@contextlib.contextmanager
def _ended_afterwards(processes: list[BaseProcess]) -> Iterator[None]:
    """End the processes when the block or the program exits.

    At exit Python sends SIGTERM to its children and waits for them, but ours ignore that signal. After an error whose
    traceback is kept, torch's iterator stays alive in it, and so would the workers.
    """
    end = partial(_end, processes)
    atexit.register(end)
    try:
        yield
    finally:
        atexit.unregister(end)
        end()


def _end(processes: list[BaseProcess]) -> None:
    for worker in processes:
        if worker.is_alive():
            worker.kill()
            worker.join()


def _exit_reason(processes: list[BaseProcess]) -> str | None:
    """How a worker died; None if none did. Its connections break a moment before the system reports its end."""
    ended = wait([worker.sentinel for worker in processes], timeout=_MOMENT)
    for worker in processes:
        if worker.sentinel in ended:
            worker.join(_MOMENT)
        if worker.exitcode is not None and worker.exitcode != 0:
            code = -worker.exitcode
            return f"killed by {signal.Signals(code).name}" if code in set(signal.Signals) else f"exit code {-code}"
    return None
