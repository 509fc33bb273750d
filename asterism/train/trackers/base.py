"""The contract of an experiment tracker, and where a run remembers its entry in each."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from asterism.files import write_text

Ending = Literal["finished", "stopped", "failed"]

_FILE = "trackers.json"


class Tracker(ABC):
    """Receives the numbers of one run. Every method may fail; training continues without the tracker."""

    @abstractmethod
    def numbers(self, step: int, values: Mapping[str, float]) -> None: ...

    @abstractmethod
    def close(self, ending: Ending) -> None: ...


def entry_of(run: Path, tracker: str) -> str | None:
    """The tracker's name for this run, if the run was tracked before: a resumed run continues its entry."""
    return _entries(run).get(tracker)


def remember_entry(run: Path, tracker: str, entry: str) -> None:
    write_text(run / _FILE, json.dumps(_entries(run) | {tracker: entry}, indent=2) + "\n")


def _entries(run: Path) -> dict[str, str]:
    path = run / _FILE
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
