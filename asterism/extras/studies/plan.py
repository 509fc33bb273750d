"""The trials of a study, each a run with one length and one seed, and their commands."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from asterism.extras.studies.budget import Budget
from asterism.extras.studies.study import EvaluationConfig, StudyConfig, chosen_runs
from asterism.train import checkpoint
from asterism.train.clock import share_in
from asterism.train.run import Run

Command = list[str]  # arguments after `asterism`


@dataclass(frozen=True)
class Trial:
    """One run of the study with one length and one seed."""

    name: str  # of its folder
    row: str  # of the table: seeds of a row are averaged
    run: str  # in the study
    seed: int
    budget: Budget | None  # None: the recipe's own length
    recipe: str | None
    model: str | None  # instead of a recipe: a model that is only evaluated
    settings: tuple[str, ...]  # except the length
    data: str | None  # to train on; of a model, for evaluations that name none
    init: str | None  # weights, or the folder of the trial `after`
    after: str | None  # the trial whose weights it starts from
    untrained: bool
    weights_options: tuple[str, ...] = ()  # of `init` or `model`

    @property
    def is_trained(self) -> bool:
        return self.recipe is not None

    @property
    def length(self) -> str:
        """How long it trains, in words."""
        if not self.is_trained:
            return "not trained"
        if self.untrained:
            return "untrained"
        return "length as in the recipe" if self.budget is None else self.budget.label


@dataclass(frozen=True)
class Place:
    """The paths of a study's files."""

    folder: Path

    def run(self, trial: str) -> Path:
        return self.folder / "runs" / trial

    def log(self, trial: str) -> Path:
        return self.folder / "logs" / f"{trial}.log"

    def record(self, trial: str) -> Path:
        """The trial's settings, and how it ended."""
        return self.folder / "trials" / f"{trial}.json"

    def speed(self, run: str) -> Path:
        return self.folder / "speed" / f"{run}.json"

    def script(self, trial: str) -> Path:
        return self.folder / "scripts" / f"{trial}.sh"

    def results(self, trial: str, part: EvaluationConfig) -> Path:
        """The folder of an evaluation, named by a hash of its settings, so that a changed evaluation runs again."""
        settings = json.dumps([part.data, part.protocols, part.settings])
        return self.folder / "evaluations" / trial / hashlib.sha256(settings.encode()).hexdigest()[:10]

    @property
    def study(self) -> Path:
        return self.folder / "study.yaml"


def plan_trials(study: StudyConfig, place: Place, only: Iterable[str] = (), data: str | None = None) -> list[Trial]:
    """Trials in the order in which they should start: seed by seed, each after the one whose weights it needs."""
    names = sorted(chosen_runs(study, only), key=lambda name: _depth(study, name))
    return [
        _trial(study, place, name, seed, budget, data)
        for seed in study.seeds
        for name in names
        for budget in study.lengths(name)
        if seed == study.seeds[0] or study.runs[name].model is None  # a model that is only evaluated has no seed
    ]


def pretrain_command(trial: Trial, place: Place, length: Sequence[str], more: Sequence[str] = ()) -> Command:
    assert trial.recipe is not None
    options = ["--data", trial.data] if trial.data else []
    # A study compares what it names: no run starts from a model of the package on its own.
    options += ["--init", trial.init or "none", *_described(trial)]
    changes = [*trial.settings, *length, *more]
    return ["pretrain", trial.recipe, "--out", str(place.run(trial.name)), *options, *changes]


def resume_command(trial: Trial, place: Place) -> Command:
    return ["pretrain", "--resume", str(place.run(trial.name))]


def evaluate_command(trial: Trial, place: Place, part: EvaluationConfig, more: Sequence[str] = ()) -> Command:
    model = trial.model or str(place.run(trial.name))
    data = part.data or (trial.data if trial.model else None)  # a run knows its own
    options = ["--data", data] if data else []
    options += _described(trial) if trial.model else []
    options += ["--out", str(place.results(trial.name, part))]
    return ["evaluate", model, "--protocols", ",".join(part.protocols), *options, *part.settings, *more]


def _described(trial: Trial) -> list[str]:
    return [word for option in trial.weights_options for word in ("--weights-option", option)]


def as_text(command: Command) -> str:
    return shlex.join(["asterism", *command])


def is_finished(place: Place, trial: str) -> bool:
    """Whether training has finished all its steps, or used all its minutes."""
    run = Run(place.run(trial))
    done = checkpoint.steps(run.checkpoints)
    if done and (steps := run.recipe.trainer.steps) is not None:
        return done[-1] >= steps
    return bool(done) and share_in(checkpoint.read(run.checkpoints).log) >= 1


def is_evaluated(trial: Trial, place: Place, part: EvaluationConfig) -> bool:
    folder = place.results(trial.name, part)
    return all((folder / f"{protocol}.json").is_file() for protocol in part.protocols)


def specification(trial: Trial) -> dict[str, Any]:
    """Everything that determines a trial's result, as plain values."""
    values: dict[str, Any] = json.loads(json.dumps(asdict(trial)))
    if not trial.weights_options:  # records of studies without them do not have this key
        del values["weights_options"]
    return values


def _trial(study: StudyConfig, place: Place, name: str, seed: int, budget: Budget | None, data: str | None) -> Trial:
    run = study.runs[name]
    row = name if len(study.lengths(name)) == 1 or budget is None else f"{name}-{budget.suffix}"
    after = None if run.after is None else _trial(study, place, run.after, seed, _start(study, run.after, budget), data)
    trained = run.recipe is not None
    uses_data = trained or any(part.data is None for part in study.evaluations)
    return Trial(
        name=f"{row}-{seed}" if trained else row,
        row=row,
        run=name,
        seed=seed,
        budget=budget,
        recipe=run.recipe,
        model=run.model,
        settings=tuple(study.changes(name, seed)) if trained else (),
        data=(data or run.data or study.data) if uses_data else None,
        init=run.init if after is None else str(place.run(after.name)),
        after=None if after is None else after.name,
        untrained=run.untrained,
        weights_options=run.weights_options,
    )


def _start(study: StudyConfig, name: str, budget: Budget | None) -> Budget | None:
    """The length of the run that another starts from: the same budget if it has it, else its longest."""
    lengths = study.lengths(name)
    return budget if budget in lengths else lengths[-1]


def _depth(study: StudyConfig, name: str) -> int:
    after = study.runs[name].after
    return 0 if after is None else 1 + _depth(study, after)
