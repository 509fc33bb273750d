"""A long list of names in two arrays: each takes its length plus nine bytes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class Names:
    """Names as bytes in one blob, each terminated by NUL. It is never modified, so workers share its memory."""

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
