"""A progress bar on the first process's terminal, shown only if the work takes a while."""

from __future__ import annotations

import time

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from asterism.ops.collectives import rank
from asterism.viz.console import plain_console, visible

_QUIET_SECONDS = 2.0  # a bar appears when the work takes longer than this


class Bar:
    """A progress bar for `total` items, of which `done` are already done."""

    def __init__(self, title: str, total: int, done: int = 0) -> None:
        self._console = plain_console(stderr=True)
        self._title, self._total, self._done = visible(title), total, done
        self._start = time.monotonic()
        self._bar: Progress | None = None

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, count: int) -> None:
        self._done += count
        if self._bar is None and self._is_due():
            columns = (
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
            )
            self._bar = Progress(*columns, console=self._console, transient=True)
            self._bar.add_task(self._title, total=self._total)
            self._bar.start()
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=self._done)

    def _is_due(self) -> bool:
        long = time.monotonic() - self._start > _QUIET_SECONDS
        return long and self._console.is_terminal and rank() == 0
