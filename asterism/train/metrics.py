"""The metrics log, `metrics.jsonl`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from io import BufferedWriter
from pathlib import Path
from typing import Any

from asterism.errors import UserError
from asterism.files import concerning, open_for_appending, replacing

_LARGEST = 1e300  # of a logged number; infinities and NaN are not drawn


class MetricsLog:
    """Appends one JSON object per line. On resume, lines after the checkpoint's step are dropped first."""

    def __init__(self, run: Path, start_step: int) -> None:
        self._path = run / "metrics.jsonl"
        _keep_until(self._path, start_step)
        self._file = BufferedWriter(open_for_appending(self._path))

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        with concerning(self._path):
            self._file.write(f"{json.dumps({'step': step, **values})}\n".encode())
            self._file.flush()

    def close(self) -> None:
        with concerning(self._path), self._file:
            os.fsync(self._file.fileno())


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """The records of a run's metrics. Damaged lines, such as one truncated by a crash, and values that are not finite
    numbers are left out."""
    return [record for _, record in _records(run / "metrics.jsonl")]


def _keep_until(path: Path, step: int) -> None:
    if not path.exists():
        return
    kept = [line for line, record in _records(path) if record["step"] <= step]
    with replacing(path) as temporary:
        temporary.write_bytes(b"".join(line + b"\n" for line in kept))


def _records(path: Path) -> list[tuple[bytes, dict[str, Any]]]:
    """Every valid line, as written and as read; steps never decrease."""
    if not path.exists():
        return []
    if not path.is_file():
        raise UserError(f"{path} is not a file; move it away")
    found: list[tuple[bytes, dict[str, Any]]] = []
    for line in path.read_bytes().split(b"\n"):
        record = _parse(line)
        if record is not None and (not found or found[-1][1]["step"] <= record["step"]):
            found.append((line, record))
    return found


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or not _is_step(record.get("step")):
        return None
    return {name: value for name, value in record.items() if _is_valid(name, value)}


def _is_step(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def _is_valid(name: str, value: object) -> bool:
    if name == "warning":
        return isinstance(value, str)
    if name == "images_per_second" and not (isinstance(value, float | int) and value > 0):
        return False
    number = isinstance(value, float | int) and not isinstance(value, bool)
    return number and abs(value) < _LARGEST  # type: ignore[arg-type]
