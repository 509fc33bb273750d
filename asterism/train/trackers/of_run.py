"""The trackers of a run. A tracker that fails never stops training."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import field_validator

from asterism.config import Config, read_yaml
from asterism.errors import MissingExtra
from asterism.train.trackers.base import Ending, Tracker
from asterism.train.trackers.mlflow_runs import MlflowConfig, MlflowRuns
from asterism.train.trackers.tensorboard import TensorBoard
from asterism.train.trackers.weights_and_biases import WandbConfig, WeightsAndBiases

_PATIENCE = 3  # failures in a row after which a tracker is given up


class TrackersConfig(Config):
    """Which trackers receive the metrics; metrics.jsonl always does."""

    tensorboard: bool | Literal["auto"] = "auto"  # auto: when the package is installed
    wandb: WandbConfig | None = None  # `true` for the defaults
    mlflow: MlflowConfig | None = None  # `true` for the defaults

    @field_validator("wandb", "mlflow", mode="before")
    @classmethod
    def _switch(cls, value: Any) -> Any:
        return ({} if value else None) if isinstance(value, bool) else value


def check_packages(config: TrackersConfig) -> None:
    """Refuse a tracker whose package is missing, before anything is written."""
    wanted = {
        "tensorboard": config.tensorboard is True,
        "wandb": config.wandb is not None,
        "mlflow": config.mlflow is not None,
    }
    for package, is_wanted in wanted.items():
        if is_wanted and not _installed(package):
            raise MissingExtra(package, package)


class Trackers:
    """All trackers of a run. Failures are reported with `warn`, which gets one sentence."""

    def __init__(self, config: TrackersConfig, run: Path, start_step: int, warn: Callable[[str], None]) -> None:
        check_packages(config)
        self._warn = warn
        self._failures: dict[str, int] = {}
        self._open: dict[str, Tracker] = {}
        settings = read_yaml(run / "config.yaml") if (run / "config.yaml").is_file() else {}
        if config.tensorboard is True or (config.tensorboard == "auto" and _installed("tensorboard")):
            self._start("TensorBoard", lambda: TensorBoard(run, start_step))
        if (wandb := config.wandb) is not None:
            self._start("Weights & Biases", lambda: WeightsAndBiases(wandb, run, settings))
        if (mlflow := config.mlflow) is not None:
            self._start("MLflow", lambda: MlflowRuns(mlflow, run, settings))

    def numbers(self, step: int, record: Mapping[str, Any]) -> None:
        """Log the numbers of a record; texts are only in metrics.jsonl."""
        values = {name: float(value) for name, value in record.items() if isinstance(value, int | float)}
        self._each(lambda tracker: tracker.numbers(step, values))

    def close(self, ending: Ending) -> None:
        self._each(lambda tracker: tracker.close(ending))

    def _start(self, name: str, create: Callable[[], Tracker]) -> None:
        try:
            self._open[name] = create()
        except Exception as error:
            self._warn(f"{name} could not be started ({_short(error)}). Training continues without it.")

    def _each(self, action: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self._open.items()):
            try:
                action(tracker)
                self._failures[name] = 0
            except Exception as error:
                self._failures[name] = self._failures.get(name, 0) + 1
                if self._failures[name] == 1:
                    self._warn(f"{name} failed ({_short(error)}). Training continues; metrics.jsonl has all numbers.")
                if self._failures[name] == _PATIENCE:
                    del self._open[name]
                    self._warn(f"{name} failed {_PATIENCE} times in a row and gets nothing more from this run.")


def _installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def _short(error: Exception) -> str:
    """The first line of the message; some trackers print pages."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
