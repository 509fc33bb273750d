"""What a study's folder holds of each trial: how far it came, what it measured, and how it learnt on the way.

Everything is read from the run folders and result files, so it does not matter who made them: this machine, torchrun or
a cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from asterism.comparing.plan import Place, Trial, is_evaluated, is_finished
from asterism.comparing.records import read_record
from asterism.comparing.study import StudyConfig, missing_value
from asterism.errors import UserError
from asterism.evals.result import read_results
from asterism.train.run import Run


@dataclass(frozen=True)
class Point:
    """What was logged at a step."""

    images: float  # seen until then, with repetitions
    core_minutes: float
    value: float


@dataclass(frozen=True)
class Outcome:
    """One trial, finished or not."""

    trial: Trial
    steps: int
    images: int
    minutes: float  # of computing, on all cores of the first process
    images_per_second: float | None  # by the clock
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
            found, lacking = _columns(part.titled, {r.protocol: r.values for r in read_results(folder)})
            values |= found
            problems += lacking
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
    """Values by column, and what to say about columns that these data did not give."""
    found, lacking = {}, []
    for title, (protocol, value) in titled.items():
        if value in results[protocol]:
            found[title] = results[protocol][value]
        else:
            lacking.append(str(missing_value(protocol, value, results[protocol])))
    return found, lacking


def _unfinished(run: Run, records: list[dict[str, Any]]) -> str:
    done = int(records[-1]["step"]) if records else 0
    try:
        return f"unfinished: {done} of {run.config['trainer']['steps']} steps"
    except UserError as error:
        return f"unfinished: {error}"


def _clock(records: list[dict[str, Any]], batch: int) -> list[tuple[int, float]]:
    """Core-minutes spent until each logged step; time by the clock in runs that did not log them."""
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
