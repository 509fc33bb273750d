"""MLflow: a server, a database, or a folder of files."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from asterism.config import Config
from asterism.train.trackers.base import Ending, Tracker, entry_of, remember_entry

_STATUS = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
_LONGEST = 500  # characters of a setting's value, which every version of MLflow accepts
_PARAMS_AT_ONCE = 100  # MLflow's limit


class MlflowConfig(Config):
    """Where the run appears."""

    uri: str | None = None  # http://…, sqlite:///…, file:///…; None: MLFLOW_TRACKING_URI, else MLflow's default
    experiment: str = "asterism"
    name: str | None = None  # None: the name of the run's folder
    tags: dict[str, str] = Field(default_factory=dict)


class MlflowRuns(Tracker):
    """One MLflow run per run. Uses a client of its own, so a run that your script has active is not disturbed."""

    def __init__(self, config: MlflowConfig, run: Path, settings: Mapping[str, Any]) -> None:
        # An unreachable server must not hold up training for MLflow's default of several minutes.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        if (config.uri or "").startswith("file:"):
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # recent versions refuse it otherwise
        from mlflow import MlflowClient

        self._client: Any = MlflowClient(config.uri)
        self._id = self._continued(entry_of(run, "mlflow")) or self._created(config, run, settings)

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        self._client.log_batch(
            self._id, metrics=[Metric(_allowed(name), value, now, step) for name, value in values.items()]
        )

    def close(self, ending: Ending) -> None:
        self._client.set_terminated(self._id, _STATUS[ending])

    def _continued(self, entry: str | None) -> str | None:
        """The entry of an earlier start of this run, if MLflow still has it."""
        from mlflow.exceptions import MlflowException

        if entry is None:
            return None
        try:
            self._client.update_run(entry, status="RUNNING")
        except MlflowException:
            return None
        return entry

    def _created(self, config: MlflowConfig, run: Path, settings: Mapping[str, Any]) -> str:
        from mlflow.entities import Param

        known = self._client.get_experiment_by_name(config.experiment)
        experiment = self._client.create_experiment(config.experiment) if known is None else known.experiment_id
        name = config.name or run.resolve().name
        entry = str(self._client.create_run(experiment, run_name=name, tags=dict(config.tags)).info.run_id)
        remember_entry(run, "mlflow", entry)
        params = [Param(_allowed(key), str(value)[:_LONGEST]) for key, value in _flat(settings).items()]
        for first in range(0, len(params), _PARAMS_AT_ONCE):
            self._client.log_batch(entry, params=params[first : first + _PARAMS_AT_ONCE])
        return entry


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        nested = isinstance(value, Mapping) and value
        flat |= _flat(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value}
    return flat


def _allowed(name: str) -> str:
    """The name in the characters that MLflow allows, with a dot for a slash: its file store cannot keep `loss` and
    `loss/dino`, a file and a folder of the same name."""
    return re.sub(r"[^\w\-. ]", "_", name.replace("/", "."))
