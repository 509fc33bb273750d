"""The shipped studies."""

from pathlib import Path

import pytest

from asterism.config import shipped_yaml
from asterism.extras.studies.checks import check_settings
from asterism.extras.studies.plan import Place, plan_trials
from asterism.extras.studies.study import load_study, study_names
from asterism.tools.choices import entries
from asterism.train.recipe import read_yaml

FILES = shipped_yaml("extras/studies/shipped")


def check(name: str) -> None:
    """Recipes, settings, protocols and values exist; the header has the command and the expected result."""
    study = load_study(name)
    trials = plan_trials(study, Place(Path("nowhere")), data=None if _has_data(name) else "images/")
    recipes = check_settings(study, trials)
    assert set(recipes) == {run for run, config in study.runs.items() if config.recipe}, name
    assert len({trial.name for trial in trials}) == len(trials), name
    lines = (FILES[name]).read_text(encoding="utf-8").splitlines()
    header = [line for line in lines if line.startswith("#")]
    assert lines[: len(header)] == header, name
    assert f"asterism compare {name} --out studies/{name}" in header[1] + header[2], name
    for word in ("expected", "command"):
        assert sum(line.startswith(f"# {word}:") for line in header) == 1, (name, word)


def test_a_few_studies_are_complete() -> None:
    for name in study_names()[::20]:
        check(name)


@pytest.mark.slow
def test_every_study_is_complete() -> None:
    for name in study_names():
        check(name)


def test_studies_are_listed_with_their_first_line() -> None:
    assert set(entries("studies")) == set(study_names())
    assert entries("studies", "sop-count-imagenet")["sop-count-imagenet"].startswith("SOP: number of prototypes")


def _has_data(name: str) -> bool:
    """Whether its recipes specify their images; those for COCO do not."""
    recipes = [run.get("recipe") for run in read_yaml(FILES[name])["runs"].values()]
    return "cribo-coco-vits16" not in recipes
