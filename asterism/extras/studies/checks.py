"""Checks before anything is trained: recipes and settings are valid, data and weights exist."""

from __future__ import annotations

from collections.abc import Sequence

from asterism.data import open_source
from asterism.data.parts import DataChoice
from asterism.errors import UserError
from asterism.evals import protocol_class
from asterism.evals.run import chosen_protocols
from asterism.extras.studies.plan import Place, Trial
from asterism.extras.studies.study import EvaluationConfig, StudyConfig
from asterism.inputs import user_path
from asterism.train.recipe import Recipe


def check_folder(place: Place) -> None:
    """Allow only a new folder, or the folder of a study."""
    folder = place.folder
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; choose another --out")
    if folder.is_dir() and any(folder.iterdir()) and not place.study.is_file():
        raise UserError(f"{folder} exists and is not the folder of a study; choose another --out")


def check_settings(study: StudyConfig, trials: Sequence[Trial]) -> dict[str, Recipe]:
    """The recipe of every trained run, by its name; every setting and length is checked."""
    recipes: dict[str, Recipe] = {}
    for trial in trials:
        if trial.recipe is None:
            continue
        try:
            if trial.run not in recipes:  # seeds and lengths do not change what is valid
                recipes[trial.run] = study.recipe(trial.run, trial.seed, trial.data)
            if trial.budget is not None and not trial.budget.is_measured:
                trial.budget.overrides(recipes[trial.run])
        except UserError as error:
            raise UserError(f"runs.{trial.run}: {error}") from None
    return recipes


def check_data(study: StudyConfig, trials: Sequence[Trial], recipes: dict[str, Recipe]) -> None:
    """Check that all images and weights exist, and that the protocols can use the data."""
    trained = {(recipe.data.path, recipe.data.split) for recipe in recipes.values()}
    for path, split in trained:
        open_source(path, split)
    for trial in trials:
        for weights in (trial.model, trial.init if trial.after is None else None):
            if weights is not None and _is_missing(weights):
                raise UserError(f"runs.{trial.run}: no such file or folder: {weights}")
        if trial.model is not None and trial.data is None and any(part.data is None for part in study.evaluations):
            raise UserError(
                f"runs.{trial.run}: a model has no data of its own; give --data, or data in the run, the study or the "
                "evaluation"
            )
    own = {path for path, _ in trained} | {trial.data for trial in trials if trial.model and trial.data}
    for part in study.evaluations:
        for path in [part.data] if part.data else sorted(own):
            _check_evaluation(part, path)


def _check_evaluation(part: EvaluationConfig, path: str) -> None:
    for name, config in chosen_protocols(part.protocols, part.settings).items():
        try:
            protocol_class(name).open_parts(config, DataChoice(path))
        except UserError as error:
            raise UserError(f"the evaluation {part.name or name} on {path}: {error}") from None


def _is_missing(weights: str) -> bool:
    """Whether a path does not exist. A name without folder or extension is a timm model or `pixels`."""
    path = user_path(weights)
    looks_like_a_path = len(path.parts) > 1 or path.suffix in (".pth", ".pt", ".safetensors", ".bin", ".ckpt")
    return looks_like_a_path and not path.exists()
