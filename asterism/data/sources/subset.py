"""Some images of a source."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from asterism.data.sources.source import Sample, Source
from asterism.data.sources.wrapped import Wrapped


class Subset(Wrapped):
    """The images of a source at the given positions, in the given order. `files` are those of the whole source."""

    def __init__(self, source: Source, indices: Sequence[int]) -> None:
        super().__init__(source)
        self.indices = np.asarray(indices, dtype=np.int64)

    @property
    def fingerprint(self) -> str:
        places = self.indices.astype("<i8").tobytes()
        return hashlib.blake2b(self.source.fingerprint.encode() + places, digest_size=8).hexdigest()

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Sample:
        return self.source[self._place(index)]

    def label(self, index: int) -> int | None:
        return self.source.label(self._place(index))

    def keys(self) -> list[str]:
        keys = self.source.keys()
        return [keys[index] for index in self.indices.tolist()]

    def _place(self, index: int) -> int:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return int(self.indices[index])
