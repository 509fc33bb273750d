"""Learning curves of a study: the mean over seeds, against images seen and against core-minutes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Literal

import numpy as np

from asterism.extras.studies.outcome import Point
from asterism.extras.studies.table import Row
from asterism.viz.charts import Series, line_chart

Axis = Literal["images", "core_minutes"]

_ABREAST = 8  # lines in a chart, one per colour
_TITLES = {"knn": "Online k-NN accuracy (%)", "loss": "Loss"}
_AXES: dict[Axis, str] = {"images": "images seen", "core_minutes": "core-minutes"}


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
