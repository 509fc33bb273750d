"""Processes and devices: one Fabric for a laptop, torchrun, SLURM, or several devices started from here."""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Mapping
from typing import Any

import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning_fabric.plugins.environments.lightning import LightningEnvironment
from lightning_fabric.strategies.ddp import DDPStrategy
from lightning_fabric.strategies.model_parallel import ModelParallelStrategy
from lightning_fabric.strategies.strategy import Strategy
from torch.nn.parallel import DistributedDataParallel

from asterism.errors import UserError
from asterism.ops import collectives
from asterism.ops.sharding import shard
from asterism.train.processes import Place
from asterism.train.recipe import TrainerConfig

_FOR_PROCESSES = ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "LOCAL_RANK", "WORLD_SIZE", "OMP_NUM_THREADS")


def launch(config: TrainerConfig, place: Place | None = None) -> Fabric:
    """Start (or join) the processes of this run.

    place: the rank of this process among CPU processes that have already been started.
    """
    _check_accelerator(config)
    if place is not None:
        logging.getLogger("lightning_fabric.utilities.distributed").setLevel(logging.WARNING)  # it logs each process
        collectives.join_local_processes(place.rank, place.size, place.port, place.listener)
        fabric = Fabric(accelerator="cpu", devices=place.size, strategy=_data_parallel(_Joined(place.rank)))
        fabric.launch()
        return fabric
    fabric = Fabric(
        accelerator=config.accelerator,
        devices=_devices(config),
        num_nodes=config.nodes,
        strategy=_strategy(config),
    )
    before, threads = dict(os.environ), torch.get_num_threads()
    fabric.launch()
    if fabric.world_size == 1:
        _restore(before, threads)
    return fabric


def _restore(before: Mapping[str, str], threads: int) -> None:
    """Undo what Fabric sets for several processes, since there is one: a later run would take it for torchrun's."""
    torch.set_num_threads(threads)
    for name in _FOR_PROCESSES:
        os.environ.pop(name, None)
        if name in before:
            os.environ[name] = before[name]


def _strategy(config: TrainerConfig) -> Strategy | str:
    if config.strategy == "fsdp":
        return ModelParallelStrategy(
            lambda module, mesh: shard(module, mesh["data_parallel"]),
            data_parallel_size=_world_size(config),
            tensor_parallel_size=1,
        )
    if config.strategy == "ddp" or _world_size(config) > 1:
        return _data_parallel()
    return "auto"


def _data_parallel(environment: ClusterEnvironment | None = None) -> DDPStrategy:
    """DDP without copying buffers in each step: methods keep centres and memory banks equal on all processes."""
    known = inspect.signature(DistributedDataParallel).parameters
    copying = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"  # torch renamed it
    options: dict[str, Any] = {copying: False}
    return DDPStrategy(cluster_environment=environment, **options)


class _Joined(LightningEnvironment):
    """Processes that we started, and that have met already."""

    creates_processes_externally = True

    def __init__(self, rank: int) -> None:
        super().__init__()
        self._rank = rank

    def local_rank(self) -> int:
        return self._rank


def _world_size(config: TrainerConfig) -> int:
    """The number of processes: as started by torchrun or SLURM, else as configured."""
    outside = os.environ.get("WORLD_SIZE") or os.environ.get("SLURM_NTASKS")
    return int(outside) if outside else config.nodes * _device_count(config)


def _devices(config: TrainerConfig) -> int | str:
    """Processes per node: as started by torchrun, else as configured."""
    local = os.environ.get("LOCAL_WORLD_SIZE")
    return int(local) if local else _device_count(config)


def _device_count(config: TrainerConfig) -> int:
    if config.devices != "auto":
        return config.devices
    use_cuda = config.accelerator == "cuda" or (config.accelerator == "auto" and torch.cuda.is_available())
    return max(1, torch.cuda.device_count()) if use_cuda else 1


def _check_accelerator(config: TrainerConfig) -> None:
    available = {"cpu": True, "auto": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not available[config.accelerator]:
        raise UserError(
            f"trainer.accelerator = {config.accelerator!r}, but torch finds no such device on this machine; "
            "choose trainer.accelerator=cpu or auto, or install a torch build for your GPU"
        )
    count = torch.cuda.device_count()
    if config.accelerator == "cuda" and isinstance(config.devices, int) and config.devices > count:
        raise UserError(
            f"trainer.devices = {config.devices}, but this machine has {count} CUDA devices; choose at most {count}"
        )
