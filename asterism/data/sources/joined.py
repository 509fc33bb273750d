"""Several sources as one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from asterism.data.sources.source import Sample, Source
from asterism.images.bad_image import BadImage


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
