"""The trackers of a run. A tracker that fails never stops training."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import UInt8
from pydantic import field_validator
from torch import Tensor
from torch.nn.functional import interpolate

from asterism.config import Config, read_yaml
from asterism.errors import MissingExtra
from asterism.train.trackers.base import Ending, Tracker
from asterism.train.trackers.mlflow_runs import MlflowConfig, MlflowRuns
from asterism.train.trackers.tensorboard import TensorBoard
from asterism.train.trackers.weights_and_biases import WandbConfig, WeightsAndBiases
from asterism.viz.page import Gallery

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
        self.wants_pictures = config.tensorboard is True or config.wandb is not None or config.mlflow is not None
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

    def pictures(self, step: int, galleries: Mapping[str, Gallery]) -> None:
        """Log each gallery as one picture, its columns from left to right."""
        for title, gallery in galleries.items():
            picture, caption = tiled(gallery), f"from left to right: {', '.join(gallery)}"
            self._each(lambda tracker, t=title, p=picture, c=caption: tracker.picture(step, t, p, c))  # type: ignore[misc]

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


_SIDE, _GAP = 96, 4  # pixels of a picture, and between two
_PAPER = 255


def tiled(gallery: Gallery) -> UInt8[Tensor, "3 h w"]:
    """Columns from left to right, images from top to bottom, all at one size."""
    columns = [_at_one_size(pictures.cpu()) for pictures in gallery.values()]
    rows = max(len(column) for column in columns)
    height, width = rows * (_SIDE + _GAP) - _GAP, len(columns) * (_SIDE + _GAP) - _GAP
    sheet = torch.full((3, height, width), _PAPER, dtype=torch.uint8)
    for x, column in enumerate(columns):
        for y, picture in enumerate(column):
            top, left = y * (_SIDE + _GAP), x * (_SIDE + _GAP)
            sheet[:, top : top + _SIDE, left : left + _SIDE] = picture
    return sheet


def _at_one_size(pictures: UInt8[Tensor, "b 3 h w"]) -> UInt8[Tensor, "b 3 s s"]:
    if pictures.shape[2:] == (_SIDE, _SIDE):
        return pictures
    if max(pictures.shape[2:]) < _SIDE:  # cells of small images stay visible
        return interpolate(pictures, (_SIDE, _SIDE), mode="nearest-exact")
    return interpolate(pictures.float(), (_SIDE, _SIDE), mode="bilinear", antialias=True).round().to(torch.uint8)
