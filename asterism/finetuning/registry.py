"""The tasks by name. Other packages add more as entry points, see `asterism.plugins`; the contract is in `task`."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from asterism.errors import unknown
from asterism.plugins import first_line, plugins

_OWN = {  # name: (module, class)
    "classify": ("asterism.finetuning.classification.classify", "Classify"),
    "segment": ("asterism.finetuning.segmentation.segment", "Segment"),
    "probe": ("asterism.finetuning.classification.probe", "Probe"),
}


def task_names() -> list[str]:
    return sorted({*_OWN, *plugins("tasks")})


def task_summaries() -> dict[str, str]:
    """The first line of every task's module, by name, without importing it."""
    return {name: _own_summary(name) if name in _OWN else plugins("tasks")[name].summary() for name in task_names()}


def load_task(name: str) -> Any:
    """The class of a task."""
    if name in _OWN:
        module, attribute = _OWN[name]
        return getattr(importlib.import_module(module), attribute)
    if name not in plugins("tasks"):
        raise unknown("task", name, task_names())
    return plugins("tasks")[name].load()


def _own_summary(name: str) -> str:
    package = Path(__file__).parents[2]
    return first_line(package.joinpath(*_OWN[name][0].split(".")).with_suffix(".py"))
