"""Lightning Fabric for the processes of a run, which have met by now."""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Mapping
from typing import Any

import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins.environments.lightning import LightningEnvironment
from lightning_fabric.strategies.ddp import DDPStrategy
from lightning_fabric.strategies.model_parallel import ModelParallelStrategy
from lightning_fabric.strategies.strategy import Strategy
from torch.nn.parallel import DistributedDataParallel

from asterism.ops.launched import Place
from asterism.ops.sharding import shard
from asterism.train.cores import device_type
from asterism.train.recipe import TrainerConfig

ALONE = Place(rank=0, size=1, address="127.0.0.1", port=0, local_rank=0, per_machine=1)
_FOR_PROCESSES = ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "LOCAL_RANK", "WORLD_SIZE", "OMP_NUM_THREADS")


def launch(config: TrainerConfig, place: Place = ALONE) -> Fabric:
    """What the loop uses of Lightning, in a process at this place."""
    logging.getLogger("lightning_fabric.utilities.distributed").setLevel(logging.WARNING)  # it logs each process
    fabric = Fabric(
        accelerator=device_type(config),
        devices=place.per_machine,
        num_nodes=place.machines,
        strategy=_strategy(config, place.size),
        plugins=[_Joined(place)],
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


def _strategy(config: TrainerConfig, processes: int) -> Strategy | str:
    if config.strategy == "fsdp":
        return ModelParallelStrategy(
            lambda module, mesh: shard(module, mesh["data_parallel"]),
            data_parallel_size=processes,
            tensor_parallel_size=1,
        )
    return _data_parallel() if config.strategy == "ddp" or processes > 1 else "auto"


def _data_parallel() -> DDPStrategy:
    """DDP without copying buffers in each step: methods keep centres and memory banks equal on all processes."""
    known = inspect.signature(DistributedDataParallel).parameters
    copying = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"  # torch renamed it
    options: dict[str, Any] = {copying: False}
    return DDPStrategy(**options)


class _Joined(LightningEnvironment):
    """Processes that have started and met already, whatever else Lightning would detect on this machine."""

    creates_processes_externally = True

    def __init__(self, place: Place) -> None:
        super().__init__()
        self._place = place

    def world_size(self) -> int:
        return self._place.size

    def global_rank(self) -> int:
        return self._place.rank

    def local_rank(self) -> int:
        return self._place.local_rank

    def node_rank(self) -> int:
        return self._place.rank // self._place.per_machine
