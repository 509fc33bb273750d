"""The images of a source under the class numbers of another one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from asterism.data.sources.source import Sample, Source


@dataclass(frozen=True)
class Relabelled:
    """`numbers` are the new numbers of the source's classes, places in `classes`."""

    source: Source
    classes: list[str]
    numbers: list[int]

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def fingerprint(self) -> str:
        return self.source.fingerprint

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Sample:
        return replace(self.source[index], label=self.label(index))

    def label(self, index: int) -> int | None:
        before = self.source.label(index)
        return None if before is None else self.numbers[before]

    def keys(self) -> list[str]:
        return self.source.keys()

    def files(self) -> Iterable[Path]:
        return self.source.files()
