"""Sums, gathers and broadcasts over the processes of a run; in a single process each is the identity.

The only code that talks to `torch.distributed`. A collective must be called by every process, in the same order.
"""

from __future__ import annotations

import atexit
import math
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from jaxtyping import Float, Shaped, UInt8
from torch import Tensor

from asterism.errors import UserError, explain_system_error, reason_of
from asterism.ops.launched import Place, launched
from asterism.ops.vigil import Vigil, end_this_process, explained, patience

T = TypeVar("T")

_vigil: Vigil | None = None  # of processes that `join` has brought together

_LOOPBACK = "127.0.0.1"
_INTERFACE = "GLOO_SOCKET_IFNAME"  # the network interface that gloo listens on
_UNLIMITED = timedelta(days=20)  # of an exchange, which `Vigil` ends; more milliseconds do not fit into 32 bits
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
    with exchange():
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
    with exchange():
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


def exchange() -> AbstractContextManager[None]:
    """The block exchanges data with all other processes, which may keep it waiting."""
    return nullcontext() if _vigil is None else _vigil.exchange()


@contextmanager
def joined_processes(fix: str) -> Iterator[None]:
    """Join the other processes that torchrun or srun started, if any. The data exchanged here is small, so it
    goes through gloo, which needs no device. fix: what to do if one of them is lost."""
    place = launched()
    with explained_loss(lambda: fix):
        if place is not None and place.size > 1:
            join(place, give_up=lambda ranks, reason: end_this_process(f"{reason}. {fix}"))
        yield


def join(place: Place, give_up: Callable[[list[int], str], None], backend: str = "gloo") -> None:
    """Join the other processes at their meeting point, and exchange signs of life with them from then on.

    give_up: called in a thread with the ranks that were lost and a sentence. It must make this process end.
    """
    global _vigil
    if _distributed():
        return
    limit, alone = patience(), place.address == _LOOPBACK
    prefix = f"asterism {place.attempt}"
    with explained(f"rank 0 of {place.size} to open {place.address}:{place.port}, where all meet ({place.launcher})"):
        store = _store(place, limit, hosts=place.is_host)
        signs = _store(place, limit, hosts=False)  # a connection of its own, because each serves one request at a time
    _vigil = Vigil(place.rank, place.size, dist.PrefixStore(prefix, signs), give_up)  # type: ignore[attr-defined]
    _vigil.begin()
    _vigil.await_all(limit)
    device = None
    if backend == "nccl":
        device = torch.device("cuda", place.local_rank)
        torch.cuda.set_device(device)
        atexit.register(leave_processes)
    group = dist.PrefixStore(prefix, store)  # type: ignore[attr-defined]
    with _on_loopback() if alone else nullcontext(), exchange():
        dist.init_process_group(
            backend, store=group, rank=place.rank, world_size=place.size, timeout=_UNLIMITED, device_id=device
        )


def _store(place: Place, limit: timedelta, *, hosts: bool) -> Any:
    try:
        return dist.TCPStore(  # type: ignore[attr-defined]
            place.address,
            place.port,
            place.size,
            hosts,
            timeout=limit,
            wait_for_workers=False,
            master_listen_fd=place.listener if hosts else None,
        )
    except dist.DistError as error:
        raise UserError(
            f"rank {place.rank} of {place.size} cannot meet the others at {place.address}:{place.port} "
            f"({reason_of(error)}); give another MASTER_PORT if it is taken, and start all with {place.launcher}"
        ) from None


@contextmanager
def _on_loopback() -> Iterator[None]:
    """Gloo listens on the loopback interface and nowhere else."""
    before = os.environ.get(_INTERFACE)
    os.environ[_INTERFACE] = _loopback()
    try:
        yield
    finally:
        os.environ.pop(_INTERFACE)
        if before is not None:
            os.environ[_INTERFACE] = before


@contextmanager
def explained_loss(fix: Callable[[], str]) -> Iterator[None]:
    """A sentence instead of a traceback when another process has died."""
    try:
        yield
    except RuntimeError as error:
        if _vigil is None or not lost_connection(error):
            raise
        raise UserError(
            f"lost the connection to another process: it was killed, or its machine failed. {fix()}"
        ) from error


def lost_connection(error: BaseException) -> bool:
    """Whether a collective failed because another process ended, or did not answer in time."""
    return isinstance(error, dist.DistError) or any(word in str(error) for word in _LOST)


def leave_processes() -> bool:
    """Leave the process group; no collective communicates afterwards. Returns whether there was a group to leave."""
    global _vigil
    joined = _distributed()
    if _vigil is not None:
        _vigil.end()
        _vigil = None
    if joined:
        dist.destroy_process_group()
    return joined


def barrier() -> None:
    """Wait until every process has reached this point."""
    if world_size() > 1:
        with exchange():
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
        with exchange():
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
