"""Exchanging tensors among the processes of one machine through memory that they share.

Each process writes into its own slot, all wait for each other, and each reads the slots of all. For the small networks
that several processes of a CPU train, this takes a fraction of the time of a connection over the loopback interface
(`benchmarks/shared_memory.py`).

The slots exist twice, and exchanges use the two sets in turn. A process that returns to a set has finished the exchange
in between, which every other process joined only after it had read its fill of this set.
"""

from __future__ import annotations

import mmap
import os
import socket
import tempfile
import time
from dataclasses import dataclass

import torch
from jaxtyping import Float, Shaped, UInt8
from torch import Tensor

_SLOT = 1 << 24  # bytes; pages that are never written take no memory. Larger tensors are exchanged piece by piece
_SETS = 2
_MOMENT = 2e-4  # seconds; waking a process that sleeps takes about as long
_LOST = "Connection closed by peer: another process has ended"


@dataclass(frozen=True)
class Ends:
    """What a process needs to take part: descriptors of the memory and of its wires, to each other process or to the
    first one. They can be inherited."""

    memory: int
    wires: tuple[int, ...]

    def close(self) -> None:
        for descriptor in (self.memory, *self.wires):
            os.close(descriptor)


class SharedMemory:
    """The shared slots, as the process of this rank sees them."""

    def __init__(self, rank: int, size: int, ends: Ends) -> None:
        self._rank, self._size = rank, size
        self._wires = [socket.socket(fileno=os.dup(wire)) for wire in ends.wires]
        slots = torch.frombuffer(mmap.mmap(ends.memory, _SETS * size * _SLOT), dtype=torch.uint8)
        self._sets = slots.view(_SETS, size, _SLOT)
        self._exchanges = 0

    def gather(self, tensor: Shaped[Tensor, ...]) -> Shaped[Tensor, "size ..."]:
        """The tensors of all processes in the order of ranks; their shapes have to be the same."""
        gathered = tensor.new_empty(self._size, *tensor.shape)
        rows = gathered.view(self._size, tensor.numel())
        at_once = _SLOT // tensor.element_size()
        for first in range(0, tensor.numel(), at_once):
            piece = rows[:, first : first + at_once]
            slots = self._next_slots().view(tensor.dtype)[:, : piece.shape[1]]
            slots[self._rank] = tensor.reshape(-1)[first : first + at_once]
            self._wait()
            piece.copy_(slots)
        return gathered

    def mean_(self, values: Float[Tensor, " n"]) -> None:
        """Replace each value by its mean over the processes, equal to the bit on all of them.

        Every process averages one part of the slots, and reads the other parts from those who averaged them.
        """
        for piece in torch.split(values, _SLOT // values.element_size()):
            slots = self._next_slots().view(values.dtype)[:, : len(piece)]
            slots[self._rank] = piece
            self._wait()
            parts = slots.tensor_split(self._size, dim=1)
            parts[self._rank][self._rank] = parts[self._rank].mean(dim=0)
            self._wait()
            torch.cat([part[rank] for rank, part in enumerate(parts)], out=piece)

    def close(self) -> None:
        """Hang up: processes that still wait for this one get an error."""
        for wire in self._wires:
            wire.close()

    def _next_slots(self) -> UInt8[Tensor, "size slot"]:
        self._exchanges += 1
        return self._sets[self._exchanges % _SETS]

    def _wait(self) -> None:
        """Wait until every process has arrived here. The first one hears from all the others, then answers them."""
        if self._rank > 0:
            self._tell()
        self._hear()
        if self._rank == 0:
            self._tell()

    def _tell(self) -> None:
        try:
            for wire in self._wires:
                wire.sendall(b".")
        except OSError as error:
            raise RuntimeError(_LOST) from error

    def _hear(self) -> None:
        for wire in self._wires:
            try:
                heard = _ready(wire) or wire.recv(1)
            except OSError as error:
                raise RuntimeError(_LOST) from error
            if not heard:
                raise RuntimeError(_LOST)


def _ready(wire: socket.socket) -> bytes:
    """What arrives within a moment. Asking again and again is faster than being woken up."""
    end = time.perf_counter() + _MOMENT
    while time.perf_counter() < end:
        try:
            return wire.recv(1, socket.MSG_DONTWAIT)
        except BlockingIOError:
            continue
    return b""


def open_ends(size: int) -> list[Ends]:
    """The ends for each of `size` processes. Whoever passes them on closes its own copies: a process that ends is only
    noticed when nobody else holds its wire."""
    memory = _memory_file(_SETS * size * _SLOT)
    pairs = [[end.detach() for end in socket.socketpair()] for _ in range(size - 1)]
    first = Ends(memory, tuple(near for near, _ in pairs))
    return [first, *(Ends(os.dup(memory), (far,)) for _, far in pairs)]


def _memory_file(size: int) -> int:
    """The descriptor of a file without a name. Linux keeps it in memory, and no mount limits its size."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("asterism")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor
