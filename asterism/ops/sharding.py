"""Sharding parameters over processes (FSDP), and uniform access to sharded and plain tensors."""

from __future__ import annotations

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor


def shard(module: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Shard a module's parameters: each transformer block by itself, gathered when it runs, and the rest together."""
    for part in list(module.modules()):
        blocks = getattr(part, "blocks", None)
        for block in blocks if isinstance(blocks, nn.Sequential | nn.ModuleList) else ():
            fully_shard(block, mesh=mesh)
    fully_shard(module, mesh=mesh)
    return module


def is_sharded(module: nn.Module) -> bool:
    """Whether the module's weights are gathered when it is called, and only then."""
    return isinstance(module, FSDPModule)


def whole(value: Tensor) -> Tensor:
    """The full tensor on every process. A collective when `value` is sharded: every process must take part."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def placed_like(value: Tensor, target: Tensor) -> Tensor:
    """A full tensor, put on `target`'s device and sharded as `target` is."""
    value = value.to(target.device)
    return distribute_tensor(value, target.device_mesh, target.placements) if isinstance(target, DTensor) else value


def local(value: Tensor) -> Tensor:
    """The part of a tensor that this process holds, sharing its memory: enough for element-wise arithmetic."""
    return value.to_local() if isinstance(value, DTensor) else value
