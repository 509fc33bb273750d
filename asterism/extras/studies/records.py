"""A record of each trial next to the runs: its settings and how it ended."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from asterism.errors import UserError
from asterism.extras.studies.plan import Place, Trial, specification
from asterism.files import write_text


def check_specifications(trials: Sequence[Trial], place: Place) -> None:
    """Refuse to mix trials of different settings in one folder."""
    for trial in trials:
        known = read_record(place, trial.name).get("asked")
        if known is not None and known != specification(trial):
            changed = [key for key, value in specification(trial).items() if known.get(key) != value]
            raise UserError(
                f"{place.run(trial.name)} was made with different settings ({', '.join(changed)}); choose another "
                f"--out, or delete {place.record(trial.name)} and that folder"
            )


def read_record(place: Place, trial: str) -> dict[str, Any]:
    path = place.record(trial)
    record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return record


def write_record(place: Place, trial: Trial, failures: Mapping[str, str]) -> None:
    """failures: the reasons, by "training" or the folder of an evaluation."""
    content = {"asked": specification(trial), "failures": dict(failures)}
    write_text(place.record(trial.name), json.dumps(content, indent=1, ensure_ascii=False) + "\n")
