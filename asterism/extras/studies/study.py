"""A study: which runs are compared, how long each one trains, and how they are evaluated.

core_minutes: 4.5           # or steps, epochs, images, gpu_hours; several values make several rows
seeds: [0, 1, 2]
settings: [trainer.batch_size=64]                   # for every run
runs:
  pixels: {model: pixels}                           # no network
  untrained: {recipe: sop-cifar10, untrained: true}
  mae: {recipe: mae-cifar10}
  sop: {recipe: sop-cifar10, settings: [method.images.count=256]}
  stellar: {recipe: stellar-cifar10, after: mae}    # starts from the weights of another run
evaluations:
  - {protocols: [knn], settings: [knn.k=20], columns: {k-NN: knn.top1_k20}}
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import Field, field_validator, model_validator

from asterism.config import Config, find_yaml, read_yaml, shipped_yaml
from asterism.errors import UserError, unknown
from asterism.evals import protocol_class
from asterism.evals.run import chosen_protocols
from asterism.extras.studies.budget import Budget, LengthConfig, steps_overrides
from asterism.nn.weights.description import parse_options
from asterism.ranges import Seed
from asterism.tools.choices import yaml_summaries
from asterism.train.recipe import Recipe, load_recipe

_FOLDER = "extras/studies/shipped"
_NAME = re.compile(r"\w[\w.+=-]*")
_TRAINING_KEYS = ("settings", "init", "after", "untrained")


class RunConfig(LengthConfig):
    """One row of the table per length: either a recipe to train, or a model that is only evaluated."""

    recipe: str | None = None  # a shipped recipe, a method or a YAML file
    settings: tuple[str, ...] = ()  # section.key=value, after those of the study
    data: str | None = None  # images to train on, instead of the study's and the recipe's
    init: str | None = None  # weights to start from: a run folder, a file, a timm name
    after: str | None = None  # another run of this study, whose weights to start from
    weights_options: tuple[str, ...] = ()  # WORD=VALUE: what the file of `init` or `model` does not say
    untrained: bool = False  # evaluate the initial network
    model: str | None = None  # instead of a recipe: a run, a weights file, a timm name, or "pixels"

    @model_validator(mode="after")
    def _trained_or_not(self) -> RunConfig:
        if (self.recipe is None) == (self.model is None):
            raise ValueError("give one of recipe, which is trained, and model, which is only evaluated")
        idle = [name for name in _TRAINING_KEYS if getattr(self, name)]
        if self.model is not None and (idle or self.budgets):
            raise ValueError(f"a model is not trained, so {', '.join(idle) or 'a budget'} has no effect; leave it out")
        if self.untrained and (self.init or self.after or self.budgets):
            raise ValueError("an untrained network has no init, after or budget; leave them out")
        if self.weights_options and not (self.init or self.model):
            raise ValueError("weights_options describe the weights of init or model, and neither is given")
        parse_options(self.weights_options)
        if self.init and self.after:
            raise ValueError("give init (weights) or after (a run of this study), not both")
        return self


class EvaluationConfig(Config):
    """An evaluation after training."""

    protocols: tuple[str, ...] = Field(min_length=1)
    columns: dict[str, str] = Field(min_length=1)  # protocol.value by the title of its column; or a list of values
    name: str | None = None  # put before the titles
    data: str | None = None  # None: the data the run was trained on
    settings: tuple[str, ...] = ()  # protocol.constant=value

    @field_validator("columns", mode="before")
    @classmethod
    def _titles(cls, value: Any) -> Any:
        return {each: each for each in value} if isinstance(value, list | tuple) else value

    @property
    def titled(self) -> dict[str, tuple[str, str]]:
        """Protocol and value by the full title of their column."""
        before = f"{self.name} " if self.name else ""
        return {f"{before}{title}": _split(value) for title, value in self.columns.items()}


class StudyConfig(LengthConfig):
    """The runs of a study, and their common settings."""

    title: str | None = None
    seeds: tuple[Seed, ...] = Field(default=(0,), min_length=1)
    data: str | None = None  # images to train on, instead of the recipes' own
    settings: tuple[str, ...] = ()  # for every run that is trained
    runs: dict[str, RunConfig]
    evaluations: tuple[EvaluationConfig, ...] = ()

    @field_validator("runs")
    @classmethod
    def _names(cls, value: dict[str, RunConfig]) -> dict[str, RunConfig]:
        if not value:
            raise ValueError("a study needs at least one run, for example `dino: {recipe: dino-scenes}`")
        for name in value:
            if not _NAME.fullmatch(name):
                raise ValueError(f"{name!r} cannot be the name of a folder; use letters, digits and . + = - _")
        return value

    @field_validator("seeds")
    @classmethod
    def _different(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(value)) < len(value):
            raise ValueError("a seed is repeated, so the same run would be counted twice; give different seeds")
        return value

    @model_validator(mode="after")
    def _starts(self) -> StudyConfig:
        for name, run in self.runs.items():
            seen = [name]
            while run.after is not None:
                if run.after not in self.runs:
                    raise unknown(f"run in runs.{seen[-1]}.after", run.after, self.runs)
                if run.after in seen:
                    raise ValueError(f"runs start from each other in a circle: {' → '.join([*seen, run.after])}")
                seen.append(run.after)
                run = self.runs[run.after]
                if run.model is not None:
                    raise ValueError(f"{seen[-1]} is not trained here; give it to runs.{name} as init: {run.model}")
        return self

    @model_validator(mode="after")
    def _columns_differ(self) -> StudyConfig:
        titles = [title for part in self.evaluations for title in part.titled]
        twice = sorted({title for title in titles if titles.count(title) > 1})
        if twice:
            raise ValueError(f"two columns are called {twice[0]!r}; give each evaluation its own name")
        return self

    @property
    def columns(self) -> list[str]:
        return [title for part in self.evaluations for title in part.titled]

    def lengths(self, name: str) -> list[Budget | None]:
        """Budgets of a run: its own, else the study's; [None] if neither sets one."""
        run = self.runs[name]
        if run.model is not None or run.untrained:
            return [None]
        return list(run.budgets or self.budgets) or [None]

    def changes(self, name: str, seed: int) -> list[str]:
        """Settings of a run, except its length."""
        run = self.runs[name]
        frozen = ["optim.lr=0", "optim.min_lr=0", *steps_overrides(1)] if run.untrained else []
        return [*self.settings, *run.settings, f"trainer.seed={seed}", *frozen]

    def recipe(self, name: str, seed: int, data: str | None = None) -> Recipe:
        """The recipe of a run, with every setting checked."""
        run = self.runs[name]
        assert run.recipe is not None
        path = data or run.data or self.data
        return load_recipe(run.recipe, self.changes(name, seed), {"data": {"path": path}} if path else None)


def load_study(name: str) -> StudyConfig:
    """Load a study from a YAML file or a shipped one by its name. All keys are checked, and everything that runs and
    evaluations refer to."""
    study = StudyConfig.parse(read_yaml(find_yaml(name, "study", _FOLDER)))
    for part in study.evaluations:
        _check_columns(part)
    return study


def study_names() -> list[str]:
    return list(shipped_yaml(_FOLDER))


def study_summaries() -> dict[str, str]:
    """Shipped studies; the first comment of each is its summary."""
    return yaml_summaries(_FOLDER)


def chosen_runs(study: StudyConfig, only: Iterable[str]) -> list[str]:
    """The runs in `only` (default: all) and those they start from, in the order of the study."""
    requested = list(only)
    for name in requested:
        if name not in study.runs:
            raise unknown("run in --only", name, study.runs)
    kept: set[str] = set()
    for name in requested or study.runs:
        before: str | None = name
        while before is not None:
            kept.add(before)
            before = study.runs[before].after
    return [name for name in study.runs if name in kept]


def missing_value(protocol: str, value: str, values: Iterable[str]) -> UserError:
    """The error for a column that a protocol does not have."""
    names: Mapping[str, None] = dict.fromkeys(values)
    return UserError(f"{protocol} has no value {value!r}; with these settings it gives: {', '.join(names)}")


def _check_columns(part: EvaluationConfig) -> None:
    """Check that every protocol, setting and value exists; values that depend on the data are checked later."""
    configs = chosen_protocols(part.protocols, part.settings)
    for protocol, value in part.titled.values():
        if protocol not in configs:
            raise unknown("protocol in a column (it must be one of the evaluation's):", protocol, configs)
        known = protocol_class(protocol).value_names(configs[protocol])
        if known and value not in known:
            raise missing_value(protocol, value, known)


def _split(column: str) -> tuple[str, str]:
    protocol, separator, value = column.partition(".")
    if not separator:
        raise UserError(f"the column {column!r} must be written protocol.value, for example knn.top1_k20")
    return protocol, value
