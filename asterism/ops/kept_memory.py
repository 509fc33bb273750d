"""Memory that a training step or a batch on a CPU frees is kept for the next one.

glibc returns freed memory to the system, which clears it before giving it out again: a thousand page faults in a step
of a small network. Other C libraries have their own rules and are left alone.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Protocol, runtime_checkable

import torch

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # glibc's numbers for these settings
_MAPPED = 1 << 25  # bytes from which a tensor gets memory of its own, which cannot be kept: the most that glibc allows
_ALWAYS_KEPT, _FREELY_KEPT = (1 << 31) - 1, 2 * _MAPPED  # bytes; the latter is what glibc itself chooses for `_MAPPED`


@contextlib.contextmanager
def kept_memory(device: torch.device) -> Iterator[None]:
    """Keep freed memory in here if the device is a CPU, and return it at the end."""
    libc = _glibc() if device.type == "cpu" else None
    if libc is None:
        yield
        return
    libc.mallopt(_MMAP_THRESHOLD, _MAPPED)
    libc.mallopt(_TRIM_THRESHOLD, _ALWAYS_KEPT)
    try:
        yield
    finally:
        libc.mallopt(_TRIM_THRESHOLD, _FREELY_KEPT)
        libc.malloc_trim(0)


@runtime_checkable
class _Glibc(Protocol):
    def mallopt(self, setting: int, value: int) -> int: ...

    def malloc_trim(self, pad: int) -> int: ...


def _glibc() -> _Glibc | None:
    """The C library of this process, if it has these functions."""
    with contextlib.suppress(OSError, TypeError):  # TypeError: on Windows
        library = ctypes.CDLL(None)
        return library if isinstance(library, _Glibc) else None
    return None
