"""A wrapper around a source: it forwards everything, and subclasses override parts."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from asterism.data.sources.source import Sample, Source


class Wrapped:
    """The whole of `source`, unchanged."""

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
