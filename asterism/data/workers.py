"""Worker processes that prepare batches: how they start, what signals mean to them, and what is said when one dies."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import threading
from collections.abc import Iterable, Iterator
from functools import partial
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset

from asterism.errors import UserError
from asterism.ops.random import generator

Request = TypeVar("Request")
Prepared = TypeVar("Prepared")


def prepare(
    tasks: Dataset[Prepared | UserError], requests: Iterable[Request], *, workers: int, prefetch: int, pin_memory: bool
) -> Iterator[Prepared]:
    """`tasks[request]` for every request, in their order, worked out by `workers` processes (0: by this one).

    Workers start once and serve until the requests end. Mistakes of the user that a worker meets (`UserError`) are
    raised here, without its traceback.
    """
    loader: DataLoader[Prepared | UserError] = DataLoader(
        tasks,
        batch_size=None,
        sampler=requests,
        num_workers=workers,
        prefetch_factor=prefetch if workers else None,
        worker_init_fn=_start_worker if workers else None,
        pin_memory=pin_memory,
        generator=generator(0),  # else torch would draw from the global one
    )
    with _own_child_signal():
        iterator: Any = iter(loader)
    crew = list(getattr(iterator, "_workers", ()))
    with _ended_afterwards(crew):
        while True:
            try:
                prepared = next(iterator)
            except StopIteration:
                return
            except (RuntimeError, ConnectionError, EOFError) as error:
                fate = _fate(crew)
                if fate is None:
                    raise
                raise UserError(
                    f"a data worker died ({fate}). Most often memory ran out: set data.workers below {workers} or "
                    "data.prefetch to 1, or give the machine (in a container: its shared memory) more"
                ) from error
            if isinstance(prepared, UserError):
                raise prepared
            yield prepared


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _start_worker(number: int) -> None:
    """Ctrl-C and a scheduler's SIGTERM reach the whole process group. What to do about them is the main process's
    decision: it may want to finish a step and save, for which it needs its workers. They end when it does."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


@contextlib.contextmanager
def _own_child_signal() -> Iterator[None]:
    """Keep torch's handler out, which raises wherever the program stands when a worker dies, even in the middle of an
    update. Without it the death is noticed at the next batch."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGCHLD"):
        yield
        return
    before = signal.getsignal(signal.SIGCHLD)
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, before if before is not None else signal.SIG_DFL)


@contextlib.contextmanager
def _ended_afterwards(crew: list[BaseProcess]) -> Iterator[None]:
    """However this ends. Python asks children to end and waits for them when the program does; ours do not listen.

    After an error that somebody keeps, torch's iterator lives on in its traceback and so would the workers.
    """
    end = partial(_end, crew)
    atexit.register(end)
    try:
        yield
    finally:
        atexit.unregister(end)
        end()


def _end(crew: list[BaseProcess]) -> None:
    for worker in crew:
        if worker.is_alive():
            worker.kill()
            worker.join()


def _fate(crew: list[BaseProcess]) -> str | None:
    """How a worker ended that should not have."""
    for worker in crew:
        if worker.exitcode is not None and worker.exitcode != 0:
            code = -worker.exitcode
            return f"killed by {signal.Signals(code).name}" if code in set(signal.Signals) else f"exit code {-code}"
    return None
