"""TensorBoard's event files in a run's folder, which Weights & Biases can read too. A failure stops no training."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import model_validator

from asterism.config import Config
from asterism.errors import MissingExtra, reason_of

_PATIENCE = 3  # failures in a row after which nothing more is written
_GONE = ("wandb", "mlflow")  # trackers of version 0.1


class TensorBoardConfig(Config):
    """Whether events are written; metrics.jsonl always has all numbers."""

    tensorboard: bool | Literal["auto"] = "auto"  # auto: when the package is installed

    @model_validator(mode="before")
    @classmethod
    def _without_other_trackers(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        for name in _GONE:
            if values.get(name):
                warnings.warn(f"monitor.{name} is ignored: see docs/training.md for {name} with a run", stacklevel=2)
        return {name: value for name, value in values.items() if name not in _GONE}


def check_package(config: TensorBoardConfig) -> None:
    """Refuse what cannot be written, before anything else is."""
    if config.tensorboard is True and not _is_installed():
        raise MissingExtra("tensorboard", "tensorboard")


class TensorBoard:
    """Shown by `tensorboard --logdir runs`. On resume, events after the checkpoint's step are dropped.

    Failures are reported with `warn`, which gets one sentence.
    """

    def __init__(self, config: TensorBoardConfig, run: Path, start_step: int, warn: Callable[[str], None]) -> None:
        check_package(config)
        self._warn, self._failures, self._writer = warn, 0, None
        if config.tensorboard is True or (config.tensorboard == "auto" and _is_installed()):
            try:
                self._writer = _writer(run, start_step)
            except Exception as error:
                warn(f"TensorBoard could not be started ({_short(error)}). Training continues without it.")

    def numbers(self, step: int, record: Mapping[str, Any]) -> None:
        """Log the numbers of a record; texts are only in metrics.jsonl."""
        if self._writer is None:
            return
        try:
            for name, value in record.items():
                if isinstance(value, int | float):
                    self._writer.add_scalar(name, value, step)
            self._failures = 0
        except Exception as error:
            self._failures += 1
            if self._failures == 1:
                self._warn(f"TensorBoard failed ({_short(error)}). Training continues; metrics.jsonl has all numbers.")
            if self._failures == _PATIENCE:
                self._writer = None
                self._warn(f"TensorBoard failed {_PATIENCE} times in a row and gets nothing more from this run.")

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


def _writer(run: Path, start_step: int) -> Any:
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(run), purge_step=start_step)


def _is_installed() -> bool:
    return importlib.util.find_spec("tensorboard") is not None


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {reason_of(error)}"
