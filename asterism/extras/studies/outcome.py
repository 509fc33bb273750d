"""The outcome of each trial in a study's folder: its progress, its results and its learning curves.

Everything is read from the run folders and result files, so it does not matter where they were made: on this machine,
with torchrun or on a cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from asterism.errors import UserError
from asterism.evals.result import read_results
from asterism.extras.studies.plan import Place, Trial, is_evaluated, is_finished
from asterism.extras.studies.records import read_record
from asterism.extras.studies.study import StudyConfig, missing_value
from asterism.train.run import Run


@dataclass(frozen=True)
class Point:
    """A value that was logged at a step."""

    images: float  # seen up to this step, with repetitions
    core_minutes: float
    value: float


@dataclass(frozen=True)
class Outcome:
    """One trial, finished or not."""

    trial: Trial
    steps: int
    images: int
    minutes: float  # of CPU time, over all processes
    images_per_second: float | None  # in wall-clock time
    values: Mapping[str, float]  # by column
    problems: tuple[str, ...]  # why something is missing
    curves: Mapping[str, list[Point]]  # by metric

    @property
    def is_complete(self) -> bool:
        return not self.problems


def read_outcome(study: StudyConfig, trial: Trial, place: Place) -> Outcome:
    failures: dict[str, str] = read_record(place, trial.name).get("failures", {})
    problems = [failures["training"]] if "training" in failures else []
    path = Run(place.run(trial.name))
    trained = trial.is_trained and (path.path / "config.yaml").is_file()
    records = path.metrics() if trained else []
    batch = path.config["trainer"]["batch_size"] if trained else 0
    if trial.is_trained and not problems and not is_finished(place, trial.name):
        problems.append(_unfinished(path, records) if trained else "not started")
    steps = 0 if trial.untrained or not records else int(records[-1]["step"])
    values: dict[str, float] = {}
    for part in study.evaluations:
        folder = place.results(trial.name, part)
        if is_evaluated(trial, place, part):
            found, missing = _columns(part.titled, {r.protocol: r.values for r in read_results(folder)})
            values |= found
            problems += missing
        elif not problems or folder.name in failures:
            problems.append(failures.get(folder.name, f"not evaluated: {', '.join(part.titled)}"))
    clock = _clock(records, batch)
    return Outcome(
        trial=trial,
        steps=steps,
        images=steps * batch,
        minutes=0.0 if trial.untrained or not clock else clock[-1][1],
        images_per_second=_throughput(records, batch) if steps else None,
        values=values,
        problems=tuple(dict.fromkeys(problems)),
        curves={} if trial.untrained else {name: _curve(records, batch, clock, name) for name in ("knn", "loss")},
    )


def _columns(
    titled: Mapping[str, tuple[str, str]], results: Mapping[str, Mapping[str, float]]
) -> tuple[dict[str, float], list[str]]:
    """Values by column, and messages about columns that the results do not have."""
    found, missing = {}, []
    for title, (protocol, value) in titled.items():
        if value in results[protocol]:
            found[title] = results[protocol][value]
        else:
            missing.append(str(missing_value(protocol, value, results[protocol])))
    return found, missing


def _unfinished(run: Run, records: list[dict[str, Any]]) -> str:
    done = int(records[-1]["step"]) if records else 0
    try:
        planned = run.config["trainer"]["steps"]
        return f"unfinished: {done} {'' if planned is None else f'of {planned} '}steps"
    except UserError as error:
        return f"unfinished: {error}"


def _clock(records: list[dict[str, Any]], batch: int) -> list[tuple[int, float]]:
    """Core-minutes spent up to each logged step; wall-clock time for runs that did not log CPU time."""
    times, total = [], 0.0
    logged = [record for record in records if "images_per_second" in record]
    ends = [0, *(int(record["step"]) for record in logged)]
    for record, (start, end) in zip(logged, pairwise(ends), strict=True):
        total += record.get("cpu_seconds", (end - start) * batch / record["images_per_second"]) / 60
        times.append((end, total))
    return times


def _throughput(records: list[dict[str, Any]], batch: int) -> float | None:
    """Images per second of the whole run."""
    logged = [record for record in records if "images_per_second" in record]
    ends = [0, *(int(record["step"]) for record in logged)]
    seconds = sum(
        (end - start) * batch / record["images_per_second"]
        for record, (start, end) in zip(logged, pairwise(ends), strict=True)
    )
    return ends[-1] * batch / seconds if seconds else None


def _curve(records: list[dict[str, Any]], batch: int, clock: list[tuple[int, float]], name: str) -> list[Point]:
    points, place = [], 0
    for record in records:
        while place < len(clock) and clock[place][0] < record["step"]:
            place += 1
        if name in record and clock:
            minutes = clock[min(place, len(clock) - 1)][1]
            points.append(Point(record["step"] * batch, minutes, float(record[name])))
    return points
