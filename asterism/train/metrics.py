"""The metrics log: `metrics.jsonl`, and TensorBoard if it is installed."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from asterism.errors import MissingExtra
from asterism.files import replacing


class MetricsLog:
    """Appends one JSON object per line. On resume, lines after the checkpoint's step are dropped first."""

    def __init__(self, run: Path, start_step: int, tensorboard: bool | Literal["auto"]) -> None:
        self._path = run / "metrics.jsonl"
        _keep_until(self._path, start_step)
        self._file = self._path.open("a", encoding="utf-8")
        self._board = _summary_writer(run, start_step, tensorboard)

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        self._file.write(json.dumps({"step": step, **values}) + "\n")
        self._file.flush()
        if self._board is not None:
            for name, value in values.items():
                if isinstance(value, int | float):
                    self._board.add_scalar(name, value, step)

    def close(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        if self._board is not None:
            self._board.close()


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """All complete records of a run's metrics; a line truncated by a crash is skipped."""
    path = run / "metrics.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [record for line in lines if (record := _parse(line))]


def _keep_until(path: Path, step: int) -> None:
    if not path.exists():
        return
    kept = [line for line in path.read_text(encoding="utf-8").splitlines() if (r := _parse(line)) and r["step"] <= step]
    with replacing(path) as temporary:
        temporary.write_text("".join(line + "\n" for line in kept), encoding="utf-8")


def _parse(line: str) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and "step" in record else None


def _summary_writer(run: Path, start_step: int, enabled: bool | Literal["auto"]) -> Any:
    """None when disabled, or when "auto" and not installed: the same numbers are in metrics.jsonl."""
    if enabled is False:
        return None
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        if enabled is True:
            raise MissingExtra("tensorboard", "tensorboard") from None
        return None
    return SummaryWriter(str(run), purge_step=start_step)
