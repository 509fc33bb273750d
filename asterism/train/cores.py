"""How training uses the cores of a CPU: several processes for a small network, several threads for a large one.

`lab/benchmarks/threads.py` measures both.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import torch

from asterism.data.workers import cores
from asterism.train.recipe import TrainerConfig

SMALL = 10_000_000  # trained parameters up to which processes are faster than threads and copies of the network cheap
BATCH = 64  # automatic batch on a CPU, over all its processes: their number must not change the result
_WORTHWHILE_STEPS, _WORTHWHILE_MINUTES = 300, 1.0  # starting a process takes seconds
_IMAGES_PER_PROCESS = 16  # with fewer, the work that every process repeats begins to matter


def allowed_cores() -> int:
    """Cores that training may use: those of this process, or fewer if OMP_NUM_THREADS limits them."""
    limit = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    return min(cores(), int(limit)) if limit.isdigit() and int(limit) > 0 else cores()


def starts_processes(config: TrainerConfig) -> bool:
    """Whether training is on the CPU of one machine, and we have to start its processes."""
    started_outside = any(name in os.environ for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "SLURM_NTASKS"))
    accelerated = torch.cuda.is_available() or torch.backends.mps.is_available()
    on_cpu = config.accelerator == "cpu" or (config.accelerator == "auto" and not accelerated)
    ours = config.nodes == 1 and config.strategy in ("auto", "ddp")
    return on_cpu and ours and not started_outside


def process_count(config: TrainerConfig, parameters: int, available: int | None = None) -> int:
    """Processes on a CPU for a network of this many trained parameters: as configured, or as cores and batch allow."""
    if config.devices != "auto":
        return config.devices
    available = allowed_cores() if available is None else available
    too_few = config.steps is not None and config.steps < _WORTHWHILE_STEPS
    too_short = config.minutes is not None and config.minutes < _WORTHWHILE_MINUTES
    if parameters > SMALL or too_few or too_short:
        return 1
    batch = BATCH if config.batch_size == "auto" else config.batch_size
    fitting = (
        count
        for count in range(available, 1, -1)
        if batch % (count * config.accumulate) == 0 and batch // count >= _IMAGES_PER_PROCESS
    )
    return next(fitting, 1)


def thread_count(parameters: int, processes: int, workers: int, available: int | None = None) -> int:
    """Threads of each process on a CPU.

    With a small network each data worker gets its own core: the network's threads synchronise after every short
    operation, and one that waits for a core delays all. A large network uses all cores; its workers have little to do.
    """
    available = allowed_cores() if available is None else available
    share = available // processes
    return max(1, share - workers if parameters <= SMALL else share)


@contextlib.contextmanager
def training_threads(device: torch.device, parameters: int, processes: int, workers: int) -> Iterator[None]:
    """On a CPU, work with the number of threads that `thread_count` gives each process, at most the present number."""
    before = torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(min(before, thread_count(parameters, processes, workers)))
    try:
        yield
    finally:
        torch.set_num_threads(before)
