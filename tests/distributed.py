"""Run a function in several gloo processes on this machine."""

import multiprocessing
import os
import pickle
import tempfile
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from asterism.ops import collectives

_SECONDS = 400  # ends a deadlock; a busy machine needs its time

# A server that has imported these once forks a clean process in milliseconds; spawning imports them every time.
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["torch", "torch.distributed.fsdp", "timm"])


def run(function: Callable[..., Any], *arguments: Any, world: int = 2) -> list[Any]:
    """What `function(*arguments)` returns in each of `world` processes, by rank.

    The function must be importable (defined at the top of a module). A failure in any process fails the test.
    """
    pipes: list[Connection] = []
    processes = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            for rank in range(world):
                receiver, sender = _context.Pipe(duplex=False)
                meeting = f"file://{Path(folder) / 'rendezvous'}"
                job = (sender, meeting, rank, world, function, arguments)
                process = _context.Process(target=_work, args=job, daemon=True)
                process.start()
                sender.close()
                pipes.append(receiver)
                processes.append(process)
            return _collect(pipes)
        finally:
            for process in processes:
                process.kill()
                process.join()


def launched(function: Callable[..., Any], *arguments: Any) -> Any:
    """For `run`: calls the function in a process that Fabric takes for one that torchrun has started."""
    rank, world = str(dist.get_rank()), str(dist.get_world_size())
    os.environ |= {"WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world, "RANK": rank, "LOCAL_RANK": rank}
    os.environ |= {"TORCHELASTIC_RUN_ID": "test", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    return function(*arguments)


def _collect(pipes: list[Connection]) -> list[Any]:
    """Results by rank; stops at the first failure, because the other processes then wait for the failed one."""
    results: dict[int, Any] = {}
    deadline = time.monotonic() + _SECONDS
    while len(results) < len(pipes):
        waiting = [pipe for rank, pipe in enumerate(pipes) if rank not in results]
        ready = wait(waiting, timeout=max(0.0, deadline - time.monotonic()))
        assert ready, f"ranks {sorted(set(range(len(pipes))) - set(results))} did not answer within {_SECONDS} s"
        for pipe in ready:
            rank = pipes.index(pipe)
            try:
                failed, value = pipe.recv()
            except EOFError:
                raise AssertionError(f"rank {rank} died") from None
            assert not failed, f"rank {rank}:\n{value}"
            results[rank] = pickle.loads(value)
    return [results[rank] for rank in range(len(pipes))]


def _work(
    pipe: Connection, meeting: str, rank: int, world: int, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
    try:
        dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world)
        result = pickle.dumps(function(*arguments))  # by value: shared memory would vanish with this process
        dist.barrier()  # leaving early would close connections that others still use
        collectives.leave_processes()
    except BaseException:
        pipe.send((True, traceback.format_exc()))
    else:
        pipe.send((False, result))
