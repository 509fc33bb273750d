"""A study as a self-contained page: the table, the curves, and the commands behind each row."""

from __future__ import annotations

from collections.abc import Sequence

from asterism.config import write_yaml
from asterism.extras.studies.budget import steps_overrides
from asterism.extras.studies.curves import charts
from asterism.extras.studies.interval import EXPLANATION
from asterism.extras.studies.plan import Place, Trial, as_text, evaluate_command, pretrain_command
from asterism.extras.studies.study import StudyConfig
from asterism.extras.studies.table import Row, cells, header
from asterism.viz import page
from asterism.viz.page import Section

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
