"""What training shows: progress, numbers, and a warning when a representation collapses."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Literal

import torch
from rich.console import RenderableType
from torch import Tensor

from asterism.config import Config
from asterism.ops.collectives import all_reduce_sum, world_size
from asterism.ops.spread import effective_rank, feature_std
from asterism.train.collapse import CollapseWatch
from asterism.train.metrics import MetricsLog
from asterism.train.online_knn import OnlineKnnConfig
from asterism.train.progress import ProgressDisplay
from asterism.types import Losses


class MonitorConfig(Config):
    """How often numbers are written, and what is measured beside the loss."""

    log_every: int = 10  # optimiser steps between records
    tensorboard: bool | Literal["auto"] = "auto"  # auto: when the package is installed
    knn: OnlineKnnConfig | None = OnlineKnnConfig()  # None: no online k-NN


class Monitor:
    """Averages what the steps report and writes a record every `log_every` steps.

    Every process keeps one, because the averages are over all of them; only the one with a run folder writes.
    """

    def __init__(
        self, config: MonitorConfig, run: Path | None, start_step: int, steps: int, uniform_terms: Mapping[str, float]
    ) -> None:
        self._every = config.log_every
        self._steps = steps
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, int] = {}
        self._embeddings: Tensor | None = None
        self._window = _Window()
        self._watch = CollapseWatch(uniform_terms)
        self._log = MetricsLog(run, start_step, config.tensorboard) if run is not None else None
        self._display = ProgressDisplay(start_step, steps) if run is not None else None

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

    def micro_batch(self, losses: Losses) -> None:
        """Take the terms and diagnostics of one micro-batch."""
        self._add("loss", losses.total)
        for name, value in losses.terms.items():
            self._add(f"loss/{name}", value)
        for name, value in losses.metrics.items():
            self._add(name, value)
        self._embeddings = losses.embeddings

    def step(
        self, step: int, *, images: int, waited: float, settled: bool, numbers: Mapping[str, float | Tensor]
    ) -> None:
        """Close an optimiser step; `settled` is False while parts of the method are held fixed on purpose."""
        self._window.add(images, waited)
        if self._display is not None:
            self._display.advance(step)
        if step % self._every and step != self._steps:
            return
        record = self._averages() | {name: float(value) for name, value in numbers.items()} | self._window.close()
        if self._embeddings is not None and len(self._embeddings) > 1:
            record["feature_std"] = float(feature_std(self._embeddings))
            record["effective_rank"] = float(effective_rank(self._embeddings))
        warning = self._watch.look(record) if settled else None
        self.write(step, record | ({"warning": warning} if warning else {}))
        if self._display is not None:
            self._display.show(record)
            if warning:
                self._display.say(f"[yellow]Warning at step {step}:[/] {warning}")

    def write(self, step: int, record: Mapping[str, float | str]) -> None:
        if self._log is not None:
            self._log.write(step, record)

    def measured(self, step: int, record: Mapping[str, float]) -> None:
        """Take what a probe says about the features."""
        self.write(step, record)
        if self._display is not None:
            self._display.show(record)

    def say(self, message: RenderableType) -> None:
        if self._display is not None:
            self._display.say(message)

    def _add(self, name: str, value: Tensor) -> None:
        value = value.detach().float()
        self._sums[name] = self._sums[name] + value if name in self._sums else value
        self._counts[name] = self._counts.get(name, 0) + 1

    def _averages(self) -> dict[str, float]:
        """Means over the steps since the last record and over all processes, in one collective."""
        means = torch.stack([self._sums[name] / self._counts[name] for name in self._sums])
        names = list(self._sums)
        self._sums, self._counts = {}, {}
        return dict(zip(names, (all_reduce_sum(means) / world_size()).tolist(), strict=True))


class _Window:
    """Throughput and the share of time spent waiting for data since the last record."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._core = time.process_time()
        self._images = 0
        self._waited = 0.0

    def add(self, images: int, waited: float) -> None:
        self._images += images
        self._waited += waited

    def close(self) -> dict[str, float]:
        seconds = max(time.perf_counter() - self._start, 1e-9)
        result = {
            "images_per_second": self._images / seconds,
            "core_seconds": time.process_time()
            - self._core,  # of all threads of this process, however busy the machine
            "data_wait_share": min(1.0, self._waited / seconds),
        }
        self.__init__()  # type: ignore[misc]
        return result
