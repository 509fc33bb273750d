"""Sums, gathers and broadcasts over the processes of a run; in a single process each is the identity.

The only code that talks to `torch.distributed`. A collective must be called by every process, in the same order.
"""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from jaxtyping import Float, Shaped, UInt8
from torch import Tensor

from asterism.errors import UserError, explain_system_error

T = TypeVar("T")

_INTERFACE = "GLOO_SOCKET_IFNAME"  # the network interface that gloo listens on
_MEETING = timedelta(seconds=60)  # for processes that have already started
_EXPLAINED = (UserError, OSError, MemoryError)  # errors that reach all processes as one sentence
_LOST = ("gloo", "Gloo", "Connection closed by peer", "Connection reset by peer", "Broken pipe", "NCCL")


def world_size() -> int:
    """The number of processes that train together."""
    return dist.get_world_size() if _distributed() else 1


def rank() -> int:
    """The number of this process, from 0."""
    return dist.get_rank() if _distributed() else 0


@torch.no_grad()
def all_reduce_sum(tensor: Shaped[Tensor, "*shape"]) -> Shaped[Tensor, "*shape"]:
    """The sum over processes, as a new tensor without gradient."""
    return _reduced(tensor, "sum")


@torch.no_grad()
def all_reduce_max(tensor: Shaped[Tensor, "*shape"]) -> Shaped[Tensor, "*shape"]:
    """The largest value over processes, as a new tensor without gradient."""
    return _reduced(tensor, "max")


def all_reduce_mean_with_grad(tensor: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """The mean over processes, with the gradient of the mean of all processes' losses.

    Each process's value enters the loss of every process. The backward pass therefore averages the incoming gradients
    over processes; with parameter gradients averaged as data-parallel training does, the result is the gradient of the
    average loss.
    """
    if world_size() > 1:
        return _Mean.apply(tensor)
    return tensor


@torch.no_grad()
def all_gather_rows(tensor: Shaped[Tensor, "rows ..."]) -> Shaped[Tensor, "all_rows ..."]:
    """Rows of all processes in the order of ranks, without gradient. Every process contributes the same number."""
    if world_size() == 1:
        return tensor.detach()
    sent = tensor.contiguous().to(_reachable(tensor))
    gathered = sent.new_empty((world_size() * len(tensor), *tensor.shape[1:]))
    dist.all_gather_into_tensor(gathered, sent)
    return gathered.to(tensor.device)


def all_gather_rows_with_grad(tensor: Float[Tensor, rows * shape]) -> Float[Tensor, all_rows * shape]:
    """`all_gather_rows`, with the gradient of the sum of all processes' losses.

    A row enters the loss of every process, so its gradient is the sum over processes. With parameter gradients averaged
    as data-parallel training does, the result is the gradient of the average loss.
    """
    return _Gather.apply(tensor) if world_size() > 1 else tensor


@torch.no_grad()
def all_gather_ragged_rows(tensor: Shaped[Tensor, "rows ..."]) -> Shaped[Tensor, "all_rows ..."]:
    """Like `all_gather_rows`, but the number of rows (possibly 0) may differ between processes."""
    if world_size() == 1:
        return tensor.detach()
    counts = all_gather_rows(torch.tensor([len(tensor)], device=tensor.device)).tolist()
    padded = tensor.new_zeros((max(counts), *tensor.shape[1:]))
    padded[: len(tensor)] = tensor
    parts = all_gather_rows(padded).view(world_size(), *padded.shape)
    return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])


def all_gather_fields(*fields: Shaped[Tensor, "rows ..."]) -> list[Shaped[Tensor, "all_rows ..."]]:
    """`all_gather_ragged_rows` of several tensors with the same number of rows. They travel together, as bytes."""
    packed = torch.cat([_row_bytes(field) for field in fields], dim=1)
    parts = torch.split(all_gather_ragged_rows(packed), [_row_bytes(field).shape[1] for field in fields], dim=1)
    return [
        part.clone(memory_format=torch.contiguous_format).view(field.dtype).view(-1, *field.shape[1:])
        for part, field in zip(parts, fields, strict=True)
    ]


def broadcast_object(value: T, source: int = 0) -> T:
    """The value held by process `source`; the other processes' values are discarded."""
    if world_size() == 1:
        return value
    box = [value]
    dist.broadcast_object_list(box, src=source)
    return box[0]


def on_first_process(action: Callable[[], T]) -> T:
    """Run `action` on process 0 and send its result, or its error, to all, so that none waits for a dead one.

    Errors of the user and of the system, such as a full disk, become a `UserError` in every process.
    """
    if world_size() == 1:
        return action()
    outcome: tuple[bool, Any] = (True, None)
    if rank() == 0:
        try:
            outcome = (True, action())
        except _EXPLAINED as error:
            outcome = (False, _sentence(error))
    succeeded, value = broadcast_object(outcome)
    if not succeeded:
        raise UserError(value)
    return value


def on_every_process(action: Callable[[], T]) -> T:
    """Run `action`, which must not communicate, on all processes; an error in one is raised in all.

    Errors of the user and of the system become a `UserError`. All wait for each other: one small collective.
    """
    if world_size() == 1:
        return action()
    problem: str | None = None
    try:
        result = action()
    except _EXPLAINED as error:
        problem = _sentence(error)
    failed = int(all_reduce_max(torch.tensor(0 if problem is None else 1 + rank(), device=_device())))
    if failed:
        raise UserError(broadcast_object(problem, source=failed - 1))
    return result


def join_processes() -> None:
    """Join the other processes that torchrun started, if any. The data exchanged here is small, so it
    goes through gloo, which needs no device."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and dist.is_available() and not dist.is_initialized():
        dist.init_process_group("gloo")


def join_local_processes(rank: int, size: int, port: int, listener: int | None) -> None:
    """Join `size` processes on this machine, which meet at `port` on the loopback interface and nowhere else.

    listener: in the first process, the descriptor of a socket that already listens at that port.
    """
    store = dist.TCPStore(  # type: ignore[attr-defined]
        "127.0.0.1", port, size, rank == 0, timeout=_MEETING, wait_for_workers=False, master_listen_fd=listener
    )
    store.set(f"arrived {rank}", "")
    if rank == 0:  # gloo would wait for half an hour for one that has died
        store.wait([f"arrived {other}" for other in range(size)], _MEETING)
    before = os.environ.get(_INTERFACE)
    os.environ[_INTERFACE] = _loopback()
    try:
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    finally:
        os.environ.pop(_INTERFACE)
        if before is not None:
            os.environ[_INTERFACE] = before


def lost_connection(error: BaseException) -> bool:
    """Whether a collective failed because another process ended, or did not answer in time."""
    return isinstance(error, dist.DistError) or any(word in str(error) for word in _LOST)


def leave_processes() -> bool:
    """Leave the process group; no collective communicates afterwards. Returns whether there was a group to leave."""
    joined = _distributed()
    if joined:
        dist.destroy_process_group()
    return joined


def barrier() -> None:
    """Wait until every process has reached this point."""
    if world_size() > 1:
        dist.barrier()


def _sentence(error: Exception) -> str:
    return str(error) if isinstance(error, UserError) else explain_system_error(error) or str(error)


def _loopback() -> str:
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in ("lo", "lo0") if name in names), names[0])


def _distributed() -> bool:
    return dist.is_available() and dist.is_initialized()


def _device() -> torch.device:
    """The device on which small tensors must be to be exchanged."""
    return torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")


def _reduced(tensor: Tensor, operation: str) -> Tensor:
    result = tensor.detach().clone(memory_format=torch.contiguous_format)
    if world_size() > 1:
        sent = result.to(_reachable(tensor))
        dist.all_reduce(sent, op=dist.ReduceOp.SUM if operation == "sum" else dist.ReduceOp.MAX)
        result = sent.to(tensor.device)
    return result


def _row_bytes(rows: Shaped[Tensor, "rows ..."]) -> UInt8[Tensor, "rows bytes"]:
    width = math.prod(rows.shape[1:])  # not -1, which is ambiguous without rows
    return rows.detach().reshape(len(rows), width).contiguous().view(torch.uint8)


def _reachable(tensor: Tensor) -> torch.device:
    """Where processes can exchange this tensor: NCCL has no CPU tensors, such as the counts of a metric."""
    return _device() if tensor.device.type == "cpu" else tensor.device


class _Mean(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return _reduced(tensor, "sum") / world_size()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return _reduced(gradients[0], "sum") / world_size()


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return all_gather_rows(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return _reduced(gradients[0], "sum").chunk(world_size())[rank()]
