"""Runs a study, and writes its table, its CSV file and its page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from asterism.config import write_yaml
from asterism.errors import UserError
from asterism.extras.studies.checks import check_data, check_folder, check_settings
from asterism.extras.studies.launch import Machines, write_scripts
from asterism.extras.studies.outcome import Outcome, read_outcome
from asterism.extras.studies.page import study_page
from asterism.extras.studies.plan import Place, Trial, as_text, evaluate_command, plan_trials, pretrain_command
from asterism.extras.studies.records import check_specifications
from asterism.extras.studies.runner import Report, run_trials, slots
from asterism.extras.studies.study import StudyConfig, load_study
from asterism.extras.studies.table import Row, markdown, results_csv, rows_of
from asterism.files import write_text


@dataclass(frozen=True)
class Comparison:
    """The results of a study so far."""

    path: Path  # its folder
    columns: tuple[str, ...]
    rows: tuple[Row, ...]

    @property
    def page(self) -> Path:
        return self.path / "report.html"

    def summary(self) -> str:
        return f"\n{self.table}\n{self.page}"

    @property
    def table(self) -> str:
        """As Markdown."""
        return markdown(self.rows, self.columns)

    @property
    def outcomes(self) -> list[Outcome]:
        return [outcome for row in self.rows for outcome in row.outcomes]


@dataclass(frozen=True)
class Planned:
    """A study whose settings are checked, and its trials."""

    name: str
    study: StudyConfig
    place: Place
    trials: tuple[Trial, ...]
    data: str | None  # to train on, instead of the study's


def plan_study(name: str, out: Path | None, data: str | None, only: Sequence[str]) -> Planned:
    """Read and check everything but the data; writes nothing."""
    study = load_study(name)
    place = Place(out if out is not None else Path("studies") / Path(name).stem)
    check_folder(place)
    trials = plan_trials(study, place, only, data)
    check_settings(study, trials)
    return Planned(Path(name).stem, study, place, tuple(trials), data)


def run_study(planned: Planned, jobs: int | None, report: Report) -> Comparison:
    """Train and evaluate the trials that are not finished. The results so far are written whenever one changes."""
    study, place, trials = planned.study, planned.place, planned.trials
    check_data(study, trials, check_settings(study, trials))
    check_specifications(trials, place)
    write_text(place.study, write_yaml(study))

    def told(sentence: str) -> None:
        try:
            write_comparison(planned)
        except (UserError, OSError) as error:  # the trials continue, and the last table is written after them
            report(f"the results so far could not be written: {error}")
        report(sentence)

    run_trials(study, trials, place, slots(jobs), told)
    return write_comparison(planned)


def write_launch_scripts(planned: Planned, machines: Machines) -> Path:
    """Write scripts instead of training; `run_study` collects their results later."""
    study, place, trials = planned.study, planned.place, planned.trials
    return write_scripts(study, trials, check_settings(study, trials), place, machines)


def write_comparison(planned: Planned) -> Comparison:
    """Write table, CSV file and page of all trials in the folder, including runs that `--only` left out this time."""
    study, place = planned.study, planned.place
    all_trials = {trial.name: trial for trial in (*plan_trials(study, place, (), planned.data), *planned.trials)}
    present = [trial for trial in all_trials.values() if trial in planned.trials or place.record(trial.name).is_file()]
    order = {name: number for number, name in enumerate(study.runs)}
    outcomes = [read_outcome(study, trial, place) for trial in sorted(present, key=lambda trial: order[trial.run])]
    found = Comparison(place.folder, tuple(study.columns), tuple(rows_of(outcomes)))
    write_text(place.folder / "table.md", found.table)
    write_text(place.folder / "results.csv", results_csv(found.outcomes, found.columns))
    write_text(found.page, study_page(planned.name, study, found.rows, place))
    return found


def describe_plan(planned: Planned) -> str:
    """Every trial with its length and its commands, as a user would type them."""
    study, place = planned.study, planned.place
    recipes = check_settings(study, planned.trials)
    lines = [f"{len(planned.trials)} trials in {place.folder}"]
    for trial in planned.trials:
        later = ", converted to steps when it starts" if trial.budget is not None and trial.budget.is_measured else ""
        lines += ["", f"{trial.name}: {trial.length}{later}{f', after {trial.after}' if trial.after else ''}"]
        if trial.is_trained:
            known = trial.budget is not None and not trial.budget.is_measured
            length = trial.budget.overrides(recipes[trial.run]) if known and trial.budget else []
            lines.append(f"  {as_text(pretrain_command(trial, place, length))}")
        lines += [f"  {as_text(evaluate_command(trial, place, part))}" for part in study.evaluations]
    return "\n".join(lines)
