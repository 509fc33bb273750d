"""A progress bar on a terminal; a line every few seconds otherwise (log files, CI)."""

from __future__ import annotations

import time
from collections.abc import Mapping

from rich.console import RenderableType
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from asterism.train.units import duration
from asterism.types import Progress
from asterism.viz.console import plain_console

_PLAIN_SECONDS = 15.0  # between lines when the output is not a terminal
_SPEED_SECONDS = 600.0  # the time left is estimated over this period, so that slow runs average a few steps too


class ProgressDisplay:
    """Step, loss, images/s, share of time waiting for data, time left, online k-NN."""

    def __init__(self, start_step: int, steps: int | None) -> None:
        """steps: of the whole run; None if they are not known."""
        self._console = plain_console()
        self._of = "" if steps is None else f"/{steps}"
        self._step = start_step
        self._values: dict[str, float] = {}
        self._last_line = 0.0
        self._bar = Bar(
            TextColumn("step {task.fields[step]}" + self._of),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[numbers]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
            speed_estimate_period=_SPEED_SECONDS,
        )
        self._task = self._bar.add_task("", total=1.0, step=start_step, numbers="")
        self._bar.update(self._task, completed=start_step / steps if steps else 0.0)

    def start(self) -> None:
        self._bar.start()

    def stop(self) -> None:
        self._bar.stop()

    def advance(self, after: Progress) -> None:
        self._step = after.step
        self._bar.update(self._task, completed=after.share, step=after.step)

    def show(self, values: Mapping[str, float]) -> None:
        self._values.update(values)
        self._bar.update(self._task, numbers=self._numbers())
        due = time.monotonic() - self._last_line > _PLAIN_SECONDS or self._bar.finished
        if not self._console.is_terminal and due:
            self._last_line = time.monotonic()
            self._console.print(f"step {self._step}{self._of}  {self._numbers()}{self._left()}")

    def print(self, message: RenderableType) -> None:
        self._console.print(message)

    def _left(self) -> str:
        remaining = self._bar.tasks[0].time_remaining
        return "" if remaining is None else f"  {duration(remaining)} left"

    def _numbers(self) -> str:
        forms = {
            "loss": "loss {:.4f}",
            "images_per_second": "{:.0f} images/s",
            "data_wait_share": "data wait {:.0%}",
            "knn": "k-NN {:.1f} %",
            "view_retrieval": "view retrieval {:.1f} %",
        }
        return "  ".join(form.format(self._values[name]) for name, form in forms.items() if name in self._values)
