"""The results of a study as a table, in Markdown and CSV."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from asterism.csv_text import comma_separated
from asterism.extras.studies.interval import EXPLANATION, Interval, interval
from asterism.extras.studies.outcome import Outcome

NONE = "–"


@dataclass(frozen=True)
class Row:
    """The trials of a run with one length, one per seed."""

    name: str
    outcomes: tuple[Outcome, ...]

    def value(self, column: str) -> Interval | None:
        return interval([outcome.values[column] for outcome in self.outcomes if column in outcome.values])

    @property
    def problems(self) -> list[str]:
        """Why results are missing, with the names of the trials if it does not concern all seeds."""
        named: dict[str, list[str]] = {}
        for outcome in self.outcomes:
            for problem in outcome.problems:
                named.setdefault(problem, []).append(outcome.trial.name)
        alone = len(self.outcomes) == 1
        return [p if alone or len(n) == len(self.outcomes) else f"{', '.join(n)}: {p}" for p, n in named.items()]

    @property
    def started(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.steps]


def rows_of(outcomes: Sequence[Outcome]) -> list[Row]:
    grouped: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        grouped.setdefault(outcome.trial.row, []).append(outcome)
    return [Row(name, tuple(members)) for name, members in grouped.items()]


def header(columns: Sequence[str]) -> list[str]:
    return ["run", "seeds", "steps", "core-minutes", "images/s", *columns]


def cells(row: Row, columns: Sequence[str]) -> list[str]:
    """The row in the order of the header; a failed run has its reason instead of values."""
    if not any(row.value(column) for column in columns) and row.problems and not row.started:
        first = row.problems[0] if columns else ""
        return [
            row.name,
            str(len(row.outcomes)),
            NONE,
            NONE,
            NONE,
            *([first] + [NONE] * (len(columns) - 1))[: len(columns)],
        ]
    return [
        row.name,
        str(len(row.outcomes)),
        _mean([outcome.steps for outcome in row.started], "{:,.0f}"),
        _mean([outcome.minutes for outcome in row.started], "{:.1f}"),
        _mean([rate for outcome in row.started if (rate := outcome.images_per_second)], "{:.0f}"),
        *(_cell(row, column) for column in columns),
    ]


def markdown(rows: Sequence[Row], columns: Sequence[str]) -> str:
    lines = [header(columns), ["---"] * len(header(columns)), *(cells(row, columns) for row in rows)]
    table = "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)
    problems = [f"- {row.name}: {problem}" for row in rows for problem in row.problems]
    return "\n".join([table, "", EXPLANATION, *(["", "Missing results:", "", *problems] if problems else [])]) + "\n"


def results_csv(outcomes: Sequence[Outcome], columns: Sequence[str]) -> str:
    """One line per trial, in full precision."""
    names = ["run", "budget", "seed", "steps", "images", "core_minutes", "images_per_second", *columns, "problems"]
    return comma_separated([names, *(_line(outcome, columns) for outcome in outcomes)])


def _line(outcome: Outcome, columns: Sequence[str]) -> list[object]:
    trial, rate = outcome.trial, outcome.images_per_second
    return [
        trial.run,
        trial.budget.label if trial.budget else "",
        trial.seed,
        outcome.steps,
        outcome.images,
        f"{outcome.minutes:.4f}",
        "" if rate is None else f"{rate:.2f}",
        *(outcome.values.get(column, "") for column in columns),
        "; ".join(outcome.problems),
    ]


def _cell(row: Row, column: str) -> str:
    found = row.value(column)
    if found is None:
        return NONE
    partly = f", {found.count} of {len(row.outcomes)} seeds" if found.count < len(row.outcomes) else ""
    return f"{found}{partly}"


def _mean(values: Sequence[float], form: str) -> str:
    return form.format(sum(values) / len(values)) if values else NONE
