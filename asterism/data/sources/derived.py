"""Sources made from other sources: some of their images, several as one, or the same images under other classes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np

from asterism.data.sources.source import Sample, Source
from asterism.images.bad_image import BadImage


class Wrapped:
    """The whole of `source`, unchanged; subclasses override parts."""

    def __init__(self, source: Source) -> None:
        self.source = source

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def classes(self) -> list[str] | None:
        return self.source.classes

    @property
    def fingerprint(self) -> str:
        return self.source.fingerprint

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Sample:
        return self.source[index]

    def label(self, index: int) -> int | None:
        return self.source.label(index)

    def keys(self) -> list[str]:
        return self.source.keys()

    def files(self) -> Iterable[Path]:
        return self.source.files()


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


class Joined:
    """The images of named parts, one part after the other; keys start with the name of the part."""

    def __init__(self, name: str, parts: Mapping[str, Source]) -> None:
        self.name = name
        self.parts = dict(parts)
        first, *others = (part.classes for part in self.parts.values())
        self.classes = first if all(classes == first for classes in others) else None

    @cached_property
    def fingerprint(self) -> str:
        parts = " ".join(f"{name}:{part.fingerprint}" for name, part in self.parts.items())
        return hashlib.blake2b(parts.encode(), digest_size=8).hexdigest()

    def __len__(self) -> int:
        return sum(len(part) for part in self.parts.values())

    def __getitem__(self, index: int) -> Sample:
        name, place = self._find(index)
        try:
            sample = self.parts[name][place]
        except BadImage as error:
            raise BadImage(f"{name}/{error.key}", error.reason) from None
        return replace(sample, key=f"{name}/{sample.key}", label=self.label(index))

    def label(self, index: int) -> int | None:
        name, place = self._find(index)
        return None if self.classes is None else self.parts[name].label(place)

    def keys(self) -> list[str]:
        return [f"{name}/{key}" for name, part in self.parts.items() for key in list(part.keys())]

    def files(self) -> Iterable[Path]:
        return (file for part in self.parts.values() for file in part.files())

    def _find(self, index: int) -> tuple[str, int]:
        for name, part in self.parts.items():
            if 0 <= index < len(part):
                return name, index
            index -= len(part)
        raise IndexError(index)


class Relabelled(Wrapped):
    """The images of a source under other classes. numbers: of the source's classes, positions in `classes`."""

    def __init__(self, source: Source, classes: Sequence[str], numbers: Sequence[int]) -> None:
        super().__init__(source)
        self._classes, self._numbers = list(classes), list(numbers)

    @property
    def classes(self) -> list[str]:
        return self._classes

    def __getitem__(self, index: int) -> Sample:
        return replace(self.source[index], label=self.label(index))

    def label(self, index: int) -> int | None:
        before = self.source.label(index)
        return None if before is None else self._numbers[before]
