"""Indices of large data sets: compact in memory, and on disk, so that a tree is listed and a tar file is scanned once.

The cache on disk is only a shortcut. If it cannot be written, the work is repeated next time; if it cannot be read or
does not match the data, it is treated as missing.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from asterism.files import replacing

Arrays = dict[str, NDArray[np.generic]]

# A change within the same tick of the file system's clock as the check does not show in the time stamp. Two seconds is
# the coarsest clock in use (FAT); anything that changed that recently is checked again next time.
_COARSEST_CLOCK = 2_000_000_000  # nanoseconds


class Names:
    """Names as bytes in one blob, each terminated by NUL, and where they end: their length plus nine bytes each.

    It is never modified, so workers share its memory.
    """

    def __init__(self, blob: bytes) -> None:
        self.blob = blob
        self._ends: NDArray[np.int64] = np.flatnonzero(np.frombuffer(blob, dtype=np.uint8) == 0)

    @classmethod
    def of(cls, names: list[bytes]) -> Names:
        return cls(b"".join(name + b"\0" for name in names))

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> bytes:
        start = int(self._ends[index - 1]) + 1 if index else 0
        return self.blob[start : int(self._ends[index])]

    def __reduce__(self) -> tuple[type[Names], tuple[bytes]]:
        return Names, (self.blob,)


def user_cache() -> Path:
    """Asterism's cache folder: $XDG_CACHE_HOME/asterism, by default ~/.cache/asterism."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "asterism"


def user_cache_file(kind: str, identity: bytes) -> Path:
    return user_cache() / kind / f"{hashlib.blake2b(identity, digest_size=16).hexdigest()}.npz"


def read_index(path: Path) -> Arrays | None:
    """The arrays of an index; None if there is none or it is damaged."""
    if not path.is_file():
        return None
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except Exception:  # numpy and zipfile raise almost anything for damaged files, and the index is then built again
        return None


def write_index(path: Path, arrays: Mapping[str, NDArray[np.generic]]) -> None:
    """Write under another name, then rename, so that a reader sees a complete index or none."""
    with contextlib.suppress(OSError), replacing(path) as temporary, temporary.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


def settled(stamps: NDArray[np.int64], checked_at: int) -> bool:
    """Whether every time stamp (nanoseconds) is old enough that any change after `checked_at` would alter it."""
    return bool((stamps < checked_at - _COARSEST_CLOCK).all())
