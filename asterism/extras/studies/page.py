"""A study as a self-contained page: the table, the learning curves, and the commands behind each row.

Curves are means over seeds, against images seen and against core-minutes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Literal

import numpy as np

from asterism.config import write_yaml
from asterism.extras.studies.budget import steps_overrides
from asterism.extras.studies.interval import EXPLANATION
from asterism.extras.studies.outcome import Point
from asterism.extras.studies.plan import Place, Trial, as_text, evaluate_command, pretrain_command
from asterism.extras.studies.study import StudyConfig
from asterism.extras.studies.table import Row, cells, header
from asterism.viz import page
from asterism.viz.charts import Series, line_chart
from asterism.viz.page import Section

Axis = Literal["images", "core_minutes"]

_ABREAST = 8  # lines in a chart, one per colour
_TITLES = {"knn": "Online k-NN accuracy (%)", "loss": "Loss"}
_AXES: dict[Axis, str] = {"images": "images seen", "core_minutes": "core-minutes"}
_CURVES = "Online k-NN is measured on held-out training images while training. The number is the last value of a run."


def study_page(title: str, study: StudyConfig, rows: Sequence[Row], place: Place) -> str:
    columns = study.columns
    problems = [[row.name, problem] for row in rows for problem in row.problems]
    return page.page(
        study.title or title,
        f"{len(rows)} rows, {len(study.seeds)} seed{'s' * (len(study.seeds) > 1)}, {_length(study)}",
        [
            Section("Results", page.table(header(columns), [cells(row, columns) for row in rows]), EXPLANATION),
            Section("Missing results", page.table(["run", "reason"], problems)),
            Section("Learning curves", charts(rows), _CURVES),
            Section("Commands", "".join(_provenance(study, row, place) for row in rows), folded=True),
            Section("The study", page.text(write_yaml(study)), "The settings as read, with all defaults.", folded=True),
        ],
    )


def _length(study: StudyConfig) -> str:
    budgets = ", ".join(budget.label for budget in study.budgets)
    return f"{budgets} each" if budgets else "length as in the recipes"


def _provenance(study: StudyConfig, row: Row, place: Place) -> str:
    """Settings and commands of the first seed; the others differ only in trainer.seed."""
    outcome = row.outcomes[0]
    trial = outcome.trial
    lines = [] if trial.recipe is None else [as_text(pretrain_command(trial, place, _steps(trial, outcome.steps)))]
    lines += [as_text(evaluate_command(trial, place, part)) for part in study.evaluations]
    changes = [*study.runs[trial.run].settings] if trial.recipe else []
    what = [f"recipe {trial.recipe}" if trial.recipe else f"model {trial.model}", *changes]
    return page.heading(row.name) + page.note(", ".join(what)) + page.text("\n".join(lines))


def _steps(trial: Trial, steps: int) -> list[str]:
    """The actual number of steps, so that the command gives the same run on another machine."""
    return [] if trial.untrained or not steps else steps_overrides(steps)


def charts(rows: Sequence[Row]) -> str:
    """All curves; if there are more runs than colours, they are divided over several charts."""
    drawn = []
    for metric, axis in product(_TITLES, _AXES):
        lines = {row.name: mean_curve(row, metric, axis) for row in rows}
        shown = {name: line for name, line in lines.items() if line}
        drawn += [line_chart(f"{_TITLES[metric]} against {_AXES[axis]}", part) for part in _parts(shown)]
    return f'<div class="charts">{"".join(drawn)}</div>' if drawn else ""


def mean_curve(row: Row, metric: str, axis: Axis) -> Series:
    """Mean over seeds, at the points of the first seed that all seeds have reached."""
    curves = [curve for outcome in row.outcomes if (curve := outcome.curves.get(metric))]
    if not curves:
        return []
    places = [x for x in (_place(point, axis) for point in curves[0]) if all(x <= _end(c, axis) for c in curves)]
    if not places:
        return []
    lines = [
        np.interp(places, [_place(point, axis) for point in curve], [point.value for point in curve])
        for curve in curves
    ]
    return list(zip(places, np.mean(lines, axis=0).tolist(), strict=True))


def _parts(series: dict[str, Series]) -> Iterator[dict[str, Series]]:
    names = list(series)
    for first in range(0, len(names), _ABREAST):
        yield {name: series[name] for name in names[first : first + _ABREAST]}


def _place(point: Point, axis: Axis) -> float:
    return point.images if axis == "images" else point.core_minutes


def _end(curve: Sequence[Point], axis: Axis) -> float:
    """The end of a curve, with a tolerance in time, so that a slightly faster seed does not cut off the last point."""
    return _place(curve[-1], axis) * (1.0 if axis == "images" else 1.05)
