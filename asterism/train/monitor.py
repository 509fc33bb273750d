"""Progress, metrics, and a warning when the representation collapses."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType

import torch
from rich.console import RenderableType
from torch import Tensor

from asterism.errors import Interrupted
from asterism.ops.collectives import all_gather_rows, all_reduce_sum, rank, world_size
from asterism.ops.effective_rank import SpreadWindow
from asterism.ranges import Count
from asterism.train.collapse import CollapseWatch
from asterism.train.metrics import MetricsLog
from asterism.train.online_quality import OnlineKnnConfig
from asterism.train.progress import ProgressDisplay
from asterism.train.trackers.base import Ending
from asterism.train.trackers.of_run import Trackers, TrackersConfig
from asterism.types import Losses, Progress

_RANK_ROWS = 256  # embeddings that the rank is measured on, from several batches if they are small
_SUM, _WATCH, _SPREAD = "sum.", "watch.", "spread"  # in a checkpoint; sums are rows of (sum, count) by process


class LoggingConfig(TrackersConfig):
    """How often metrics are logged, and where to."""

    log_every: Count = 10  # optimiser steps between records


class MonitorConfig(LoggingConfig):
    """Also what is measured besides the loss while pretraining."""

    knn: OnlineKnnConfig | None = OnlineKnnConfig()  # None: no online k-NN
    keep_better: bool = False  # export the weights that the run starts from as long as they measure better


class Monitor:
    """Averages the metrics of the steps, and writes a record every `log_every` steps.

    Every process has one, because the averages are over all processes; only the one with a run folder writes.
    """

    def __init__(
        self,
        config: LoggingConfig,
        run: Path | None,
        start_step: int,
        steps: int | None,
        uniform_terms: Mapping[str, float],
        began: float | None = None,
    ) -> None:
        """steps: of the whole run; None if they are not known. began: when it was started or resumed; None: now."""
        self._every = config.log_every
        self._steps = steps
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, int] = {}
        self._spread: SpreadWindow | None = None
        self._earlier: Tensor | None = None  # embeddings from before an interruption
        self._window = _Window()
        self._written = time.monotonic() if began is None else began
        self._watch = CollapseWatch(uniform_terms, None if steps is None else steps // config.log_every)
        self._log = MetricsLog(run, start_step) if run is not None else None
        self._display = ProgressDisplay(start_step, steps) if run is not None else None
        self._trackers = None if run is None else Trackers(config, run, start_step, self._warn)

    def __enter__(self) -> Monitor:
        if self._display is not None:
            self._display.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._display is not None:
            self._display.stop()
        if self._log is not None:
            self._log.close()
        if self._trackers is not None:
            self._trackers.close(_ending(error))

    def micro_batch(self, losses: Losses) -> None:
        """Add the loss terms and metrics of one micro-batch."""
        self._add("loss", losses.total)
        for name, value in losses.terms.items():
            self._add(f"loss/{name}", value)
        for name, value in losses.metrics.items():
            self._add(name, value)
        if losses.embeddings is not None:
            if self._spread is None:
                first_tenth = _RANK_ROWS if self._steps is None else len(losses.embeddings) * max(1, self._steps // 10)
                self._spread = SpreadWindow(min(_RANK_ROWS, first_tenth))
                if self._earlier is not None:
                    self._spread.add(self._earlier.to(losses.embeddings))
            self._spread.add(losses.embeddings)

    def step(
        self, after: Progress, *, images: int, waited: float, settled: bool, numbers: Mapping[str, float | Tensor]
    ) -> None:
        """Finish an optimiser step; `settled` is False while parts of the method are frozen on purpose."""
        self._window.add(images, waited)
        step = after.step
        if self._display is not None:
            self._display.advance(after)
        if self._spread is not None and self._spread.is_full and not self._watch.has_begun:
            self._watch.begin(step, self._spread.measure().get("effective_rank", 0.0))
        if step % self._every and not after.is_over:
            return
        window, self._window = self._window.summary(), _Window()
        self._add("cpu_seconds", torch.tensor(window.pop("cpu_seconds") * world_size()))
        record = self._averages() | {name: float(value) for name, value in numbers.items()} | window
        if self._spread is not None:
            record |= self._spread.measure()
        warning = self._watch.check(step, record) if settled else None
        self.write(step, record | ({"warning": warning} if warning else {}))
        if self._display is not None:
            self._display.show(record)
            if warning:
                self._display.print(f"Warning at step {step}: {warning}")

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint keeps: the unfinished averages of all processes, the embeddings that the rank is measured
        on, and what the watch has seen. Every process must call this; those of the first are kept."""
        kept = {
            f"{_WATCH}{name}": torch.tensor(value, dtype=torch.double) for name, value in self._watch.state().items()
        }
        for name, value in self._sums.items():
            kept[f"{_SUM}{name}"] = all_gather_rows(
                torch.stack([value, torch.full_like(value, self._counts[name])])[None]
            )
        if self._spread is not None:
            kept[_SPREAD] = self._spread.newest
        return {name: value.cpu() for name, value in kept.items()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """The opposite of `state`. With another number of processes each continues from the mean of all."""
        for name, value in _below(_SUM, state).items():
            total, count = value[rank()] if len(value) == world_size() else value.mean(dim=0)
            self._sums[name], self._counts[name] = total, int(count)
        self._earlier = state.get(_SPREAD)
        self._watch.restore({name: float(value) for name, value in _below(_WATCH, state).items()})

    def write(self, step: int, record: Mapping[str, float | str]) -> None:
        """Log a record, with the seconds since the one before it, or since the run was started or resumed."""
        now = time.monotonic()
        record, self._written = {**record, "seconds": now - self._written}, now
        if self._log is not None:
            self._log.write(step, record)
        if self._trackers is not None:
            self._trackers.numbers(step, record)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Exclude the enclosed work, which is not training, from throughput and CPU time."""
        start = self._window.now()
        yield
        self._window.skip(start)

    def measured(self, step: int, record: Mapping[str, float]) -> None:
        """Log and show what a probe measured."""
        self.write(step, record)
        if self._display is not None:
            self._display.show(record)

    def print(self, message: RenderableType) -> None:
        if self._display is not None:
            self._display.print(message)

    def _warn(self, message: str) -> None:
        self.print(f"Warning: {message}")

    def _add(self, name: str, value: Tensor) -> None:
        value = value.detach().float()
        self._sums[name] = self._sums[name] + value if name in self._sums else value
        self._counts[name] = self._counts.get(name, 0) + 1

    def _averages(self) -> dict[str, float]:
        """Means over the steps since the last record and over all processes, in one collective."""
        device = self._sums["loss"].device  # times, and what a checkpoint contained, are in memory of the CPU
        means = torch.stack([self._sums[name].to(device) / self._counts[name] for name in self._sums])
        names = list(self._sums)
        self._sums, self._counts = {}, {}
        return dict(zip(names, (all_reduce_sum(means) / world_size()).tolist(), strict=True))


def _below(prefix: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


def _ending(error: BaseException | None) -> Ending:
    if error is None:
        return "finished"
    return "stopped" if isinstance(error, Interrupted | KeyboardInterrupt) else "failed"


class _Window:
    """Throughput, share of time spent waiting for data, and CPU time since the last record."""

    def __init__(self) -> None:
        self._start, self._cpu_start = self.now()
        self._images = 0
        self._waited = 0.0

    @staticmethod
    def now() -> tuple[float, float]:
        """Wall-clock seconds, and CPU seconds of all threads of this process."""
        return time.perf_counter(), time.process_time()

    def skip(self, start: tuple[float, float]) -> None:
        """Exclude the time since `start`."""
        seconds, cpu_seconds = self.now()
        self._start += seconds - start[0]
        self._cpu_start += cpu_seconds - start[1]

    def add(self, images: int, waited: float) -> None:
        self._images += images
        self._waited += waited

    def summary(self) -> dict[str, float]:
        now, cpu_now = self.now()
        seconds = max(now - self._start, 1e-9)
        return {
            "images_per_second": self._images / seconds,
            "data_wait_share": min(1.0, self._waited / seconds),
            "cpu_seconds": cpu_now - self._cpu_start,
        }
