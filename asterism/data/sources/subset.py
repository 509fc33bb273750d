"""Some images of a source."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from asterism.data.sources.source import Sample, Source


class Subset:
    """The images of a source at the given places, in the given order; a source itself."""

    def __init__(self, source: Source, indices: Sequence[int]) -> None:
        self.source = source
        self.indices = np.asarray(indices, dtype=np.int64)

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def classes(self) -> list[str] | None:
        return self.source.classes

    @cached_property
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

    def files(self) -> Iterable[Path]:
        """Those of the whole source, of which a subset does not know its own."""
        return self.source.files()

    def _place(self, index: int) -> int:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return int(self.indices[index])
