"""Exchanging tensors among the processes of one machine through memory that they share.

Each process writes into its own slot, all wait for each other, and each reads the slots of all. For the small networks
that several processes of a CPU train, this takes a fraction of the time of a connection over the loopback interface
(`lab/benchmarks/shared_memory.py`).

The slots exist twice, and exchanges use the two sets in turn. A process that returns to a set has finished the exchange
in between, which every other process joined only after it had read what it needs from this set.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import socket
import struct
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

import torch
from jaxtyping import Float, Shaped, UInt8
from torch import Tensor

from asterism.errors import UserError

_SLOT = 1 << 24  # bytes; pages that are never written take no memory. Larger tensors are exchanged piece by piece
_SETS = 2
_MOMENT = 2e-4  # seconds; waking a process that sleeps takes about as long
# Messages between processes: the bytes that each has written, or −n before a sentence of n bytes: why one fails.
_WORD = struct.Struct("q")


class Disconnected(RuntimeError):
    """Another process has ended, or left."""


@dataclass(frozen=True)
class Ends:
    """What a process needs to take part: descriptors of the memory and of its wires.

    The first process has a wire to each of the others; they have one, to the first.
    """

    memory: int
    wires: Sequence[int]

    def close(self) -> None:
        for descriptor in (self.memory, *self.wires):
            os.close(descriptor)


def open_ends(size: int) -> list[Ends]:
    """The ends for each of `size` processes. Whoever passes them on closes its own copies: a process that ends is only
    noticed when nobody else holds its wire."""
    memory = _memory_file(_SETS * size * _SLOT)
    pairs = [[end.detach() for end in socket.socketpair()] for _ in range(size - 1)]
    first = Ends(memory, [near for near, _ in pairs])
    return [first, *(Ends(os.dup(memory), [far]) for _, far in pairs)]


class SharedMemory:
    """The shared slots, as the process of this rank sees them."""

    def __init__(self, rank: int, size: int, ends: Ends) -> None:
        """The descriptors are duplicated, and remain the caller's to close."""
        self._rank, self._size = rank, size
        self._wires = [socket.socket(fileno=os.dup(wire)) for wire in ends.wires]
        for wire in self._wires:
            wire.settimeout(None)  # whatever the program's default is
        slots = torch.frombuffer(mmap.mmap(ends.memory, _SETS * size * _SLOT), dtype=torch.uint8)
        self._sets = slots.view(_SETS, size, _SLOT)
        self._exchanges = 0

    @torch.no_grad()
    def gather(self, tensor: Shaped[Tensor, ...]) -> Shaped[Tensor, "size ..."]:
        """The tensors of all processes in the order of ranks; their shapes have to be the same."""
        gathered = tensor.new_empty(self._size, *tensor.shape)
        rows, values = gathered.view(self._size, tensor.numel()), tensor.reshape(-1)
        at_once = _SLOT // tensor.element_size()
        for first in range(0, len(values), at_once):
            piece = values[first : first + at_once]
            slots = self._next_slots().view(tensor.dtype)[:, : len(piece)]
            slots[self._rank] = piece
            self._wait(piece)
            rows[:, first : first + at_once] = slots
        return gathered

    @torch.no_grad()
    def mean_(self, values: Float[Tensor, " n"]) -> None:
        """Replace each value by its mean over the processes, equal to the bit on all of them.

        Every process averages one part of the slots, and reads the other parts from those who averaged them.
        """
        for piece in torch.split(values, _SLOT // values.element_size()):
            slots = self._next_slots().view(values.dtype)[:, : len(piece)]
            slots[self._rank] = piece
            self._wait(piece)
            parts = slots.tensor_split(self._size, dim=1)
            parts[self._rank][self._rank] = parts[self._rank].mean(dim=0)
            self._wait(piece)
            torch.cat([part[rank] for rank, part in enumerate(parts)], out=piece)

    def fail(self, sentence: str) -> NoReturn:
        """Instead of taking part in the next exchange, send all processes the reason. It raises in all."""
        message = (sentence or "another process failed").encode()
        self._meet(_WORD.pack(-len(message)) + message)
        raise AssertionError("unreachable")

    def close(self) -> None:
        """Hang up, also for copies of the wires in other processes, such as data workers."""
        for wire in self._wires:
            with contextlib.suppress(OSError):  # the other side was faster
                wire.shutdown(socket.SHUT_RDWR)
            wire.close()

    def _next_slots(self) -> UInt8[Tensor, "size slot"]:
        self._exchanges += 1
        return self._sets[self._exchanges % _SETS]

    def _wait(self, written: Tensor) -> None:
        """Wait until every process has written as much."""
        self._meet(_WORD.pack(written.nbytes))

    def _meet(self, own: bytes) -> None:
        """Exchange messages. The first process receives from all others, then answers them, also for one that fails."""
        try:
            if self._rank > 0:
                self._tell(own)
            heard = [_next_message(wire) for wire in self._wires]
            failure = next(filter(_is_failure, (*heard, own)), None)
            if self._rank == 0:
                self._tell(failure or own)
        except OSError as error:
            raise Disconnected("another process has ended") from error
        if not all(heard):
            raise Disconnected("another process has ended")
        if failure is not None:
            raise UserError(failure[_WORD.size :].decode())
        assert heard == [own] * len(heard), "processes exchange tensors of different sizes"

    def _tell(self, message: bytes) -> None:
        for wire in self._wires:
            wire.sendall(message)


def _is_failure(message: bytes) -> bool:
    return bool(message) and _WORD.unpack_from(message)[0] < 0


def _next_message(wire: socket.socket) -> bytes:
    """The next message that arrives, empty if the other side has hung up."""
    word = _next_word(wire)
    if not _is_failure(word):
        return word
    return word + wire.recv(-_WORD.unpack(word)[0], socket.MSG_WAITALL)


def _next_word(wire: socket.socket) -> bytes:
    """The next word that arrives. It polls at first, which is faster than waiting to be woken."""
    end = time.perf_counter() + _MOMENT
    while time.perf_counter() < end:
        with contextlib.suppress(BlockingIOError):
            return wire.recv(_WORD.size, socket.MSG_DONTWAIT)
    return wire.recv(_WORD.size, socket.MSG_WAITALL)


def _memory_file(size: int) -> int:
    """The descriptor of a file without a name. Linux keeps it in memory, and no mount limits its size."""
    try:
        descriptor = os.memfd_create("asterism")
    except (AttributeError, OSError):  # another system, or one that forbids it
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor
