"""How training uses the cores of a CPU: several processes for a small network, several threads for a large one.

`lab/benchmarks/threads.py` measures both.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import torch

from asterism.data.workers import check_count, cores
from asterism.errors import UserError
from asterism.train.recipe import TrainerConfig

SMALL = 10_000_000  # trained parameters up to which processes are faster than threads and copies of the network cheap
BATCH = 64  # automatic batch on a CPU, over all its processes: their number must not change the result
_WORTHWHILE_STEPS, _WORTHWHILE_MINUTES = 300, 1.0  # starting a process takes seconds
_IMAGES_PER_PROCESS = 16  # with fewer, the work that every process repeats begins to matter


def allowed_cores() -> int:
    """Cores that training may use: those of this process, or fewer if OMP_NUM_THREADS limits them."""
    limit = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    return min(cores(), int(limit)) if limit.isdigit() and int(limit) > 0 else cores()


def device_type(config: TrainerConfig) -> str:
    """What training runs on; refuses what this machine does not have."""
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if config.accelerator == "auto":
        return next(name for name, found in available.items() if found)
    if not available[config.accelerator]:
        raise UserError(
            f"trainer.accelerator = {config.accelerator!r}, but torch finds no such device on this machine; "
            "choose trainer.accelerator=cpu or auto, or install a torch build for your GPU"
        )
    return config.accelerator


def check_devices(config: TrainerConfig) -> None:
    """Refuse more devices than this machine has, and other machines, where nothing has started the processes."""
    if device_type(config) == "cuda" and config.devices != "auto" and config.devices > torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise UserError(
            f"trainer.devices = {config.devices}, but this machine has {count} CUDA devices; choose at most {count}"
        )
    if config.devices != "auto":
        check_count("processes (trainer.devices)", config.devices)
    if config.nodes > 1:
        raise UserError(
            f"trainer.nodes = {config.nodes}, but neither torchrun nor srun has started this process, so the other "
            "machines would be awaited for ever; start the command on each with one of these, or set trainer.nodes=1"
        )


def process_count(config: TrainerConfig, parameters: int, available: int | None = None) -> int:
    """Processes of a run on this machine: one for each GPU; on a CPU as configured, or as many as suit the number of
    trained parameters, the cores and the batch."""
    if config.devices != "auto":
        return config.devices
    kind = device_type(config)
    if kind != "cpu" or config.strategy == "fsdp":
        return max(1, torch.cuda.device_count()) if kind == "cuda" else 1
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
