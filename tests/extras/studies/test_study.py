"""Reading studies: what is allowed, and errors that name the value and the fix before anything is trained."""

from dataclasses import replace
from pathlib import Path

import pytest

from asterism.errors import UserError
from asterism.extras.studies.budget import Budget
from asterism.extras.studies.checks import check_data, check_folder, check_settings
from asterism.extras.studies.plan import Place, as_text, evaluate_command, plan_trials, pretrain_command, specification
from asterism.extras.studies.study import StudyConfig, chosen_runs, load_study
from asterism.train.recipe import load_recipe

GOOD = """
steps: 5
runs:
  dino: {recipe: dino-scenes}
evaluations:
  - {protocols: [knn], settings: [knn.k=20], columns: {k-NN: knn.top1_k20}}
"""
WRONG = {
    "runs: {}": "at least one run",
    "stepz: 3\nruns: {a: {recipe: dino-scenes}}": "did you mean 'steps'",
    "runs: {a: {recip: dino-scenes}}": "did you mean 'runs.a.recipe'",
    "runs: {a: {recipe: dino-scenes, model: pixels}}": "one of recipe",
    "runs: {a: {}}": "one of recipe",
    "runs: {a: {model: pixels, settings: [optim.lr=1]}}": "settings has no effect",
    "runs: {a/b: {recipe: dino-scenes}}": "cannot be the name of a folder",
    "steps: 3\nepochs: 2\nruns: {a: {recipe: dino-scenes}}": "two budgets are given (steps and epochs)",
    "runs: {a: {recipe: dino-scenes, steps: 3, images: 9}}": "two budgets are given",
    "steps: 0\nruns: {a: {recipe: dino-scenes}}": "steps.0 = 0: must be at least 1",
    "seeds: [1, 1]\nruns: {a: {recipe: dino-scenes}}": "a seed is repeated",
    "runs: {a: {recipe: dino-scenes, after: mea}, mae: {recipe: mae-scenes}}": "did you mean 'mae'",
    "runs: {a: {recipe: dino-scenes, after: b}, b: {recipe: mae-scenes, after: a}}": "in a circle",
    "runs: {a: {recipe: dino-scenes, untrained: true, steps: 3}}": "untrained",
    "runs: {a: {recipe: dino-scenes, weights_options: [heads=4]}}": "neither is given",
    "runs: {a: {model: w.pth, weights_options: [head=4]}}": "did you mean 'heads'",
    "runs: {a: {recipe: dino-scenes}}\nevaluations: [{protocols: [knnn], columns: [knnn.top1]}]": "did you mean 'knn'",
    "runs: {a: {recipe: dino-scenes}}\nevaluations: [{protocols: [knn], columns: [top1_k20]}]": "protocol.value",
    "runs: {a: {recipe: dino-scenes}}\nevaluations: [{protocols: [knn], columns: [linear.top1]}]": "must be one of the",
    "runs: {a: {model: pixels}}\nevaluations: [{protocols: [knn], settings: [knn.k=5], columns: [knn.top1_k20]}]": (
        "gives: top1_k5, top5_k5"
    ),
    "runs: {a: {model: pixels}}\nevaluations: [{protocols: [knn], settings: [knn.kk=5], columns: [knn.top1_k20]}]": (
        "unknown setting 'knn.kk'"
    ),
}


@pytest.mark.parametrize("text", WRONG)
def test_mistakes_are_named(text: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        load_study(_write(tmp_path, text))
    assert WRONG[text] in str(error.value)


@pytest.mark.parametrize(("setting", "words"), [("method.out_dimm=3", "method.out_dim"), ("optim.lr=x", "optim.lr")])
def test_settings_of_runs_are_checked_with_the_name_of_the_run(setting: str, words: str, tmp_path: Path) -> None:
    study = load_study(_write(tmp_path, f"runs: {{a: {{recipe: dino-scenes, settings: [{setting}]}}}}"))
    with pytest.raises(UserError, match=r"runs\.a: ") as error:
        check_settings(study, plan_trials(study, Place(tmp_path)))
    assert words in str(error.value)


def test_missing_data_and_weights_are_found_before_training(tmp_path: Path) -> None:
    for text, words in {
        "runs: {a: {recipe: dino-scenes, data: nowhere/}}": "nowhere",
        "runs: {a: {recipe: dino-scenes, init: runs/none}}": "no such file or folder: runs/none",
        "runs: {a: {model: none.pth}}": "no such file or folder: none.pth",
        "runs: {a: {recipe: dino-scenes}}\n"
        "evaluations: [{data: nowhere/, protocols: [knn], columns: [knn.top1_k20]}]": "nowhere",
    }.items():
        study = load_study(_write(tmp_path, text))
        trials = plan_trials(study, Place(tmp_path / "out"))
        with pytest.raises(UserError, match=words):
            check_data(study, trials, check_settings(study, trials))
    assert not (tmp_path / "out").exists()


def test_a_study_is_not_written_to_another_folder(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").touch()
    with pytest.raises(UserError, match="not the folder of a study"):
        check_folder(Place(tmp_path / "photos"))


def test_trials_are_runs_times_seeds_times_budgets(tmp_path: Path) -> None:
    study = StudyConfig.parse(
        {
            "steps": [5, 10],
            "seeds": [3, 4],
            "runs": {
                "pixels": {"model": "pixels"},
                "late": {"recipe": "dino-scenes", "after": "mae"},
                "mae": {"recipe": "mae-scenes", "settings": ["optim.lr=1e-4"]},
                "plain": {"recipe": "mae-scenes", "untrained": True},
            },
        }
    )
    trials = {trial.name: trial for trial in plan_trials(study, Place(tmp_path))}
    of_one_seed = ["mae-5steps", "mae-10steps", "plain", "late-5steps", "late-10steps"]
    assert list(trials) == ["pixels", *(f"{n}-3" for n in of_one_seed), *(f"{n}-4" for n in of_one_seed)]
    late = trials["late-10steps-4"]
    assert late.after == "mae-10steps-4"
    assert late.init == str(tmp_path / "runs" / "mae-10steps-4")
    assert trials["mae-5steps-3"].settings == ("optim.lr=1e-4", "trainer.seed=3")
    assert "trainer.steps=1" in trials["plain-3"].settings


def test_only_includes_the_runs_it_starts_from() -> None:
    runs = {"a": {"recipe": "mae-scenes"}, "b": {"recipe": "dino-scenes", "after": "a"}, "c": {"recipe": "mae-scenes"}}
    study = StudyConfig.parse({"runs": runs})
    assert chosen_runs(study, ["b"]) == ["a", "b"]
    assert chosen_runs(study, []) == ["a", "b", "c"]
    with pytest.raises(UserError, match="unknown run in --only 'd'"):
        chosen_runs(study, ["d"])


def test_budgets_become_settings_that_replace_the_length_of_the_recipe() -> None:
    recipe = load_recipe("dino-scenes", ["trainer.batch_size=32"])
    for kind, amount, field, value in (
        ("steps", 7, "steps", 7),
        ("epochs", 2.5, "epochs", 2.5),
        ("images", 65, "steps", 3),
    ):
        overrides = Budget(kind, amount).overrides(recipe)  # type: ignore[arg-type]
        changed = load_recipe("dino-scenes", ["trainer.batch_size=32", *overrides]).trainer
        assert getattr(changed, field) == value
    with pytest.raises(UserError, match="a fixed batch size"):
        Budget("images", 65).overrides(load_recipe("dino-scenes", ["trainer.batch_size=auto"]))


def test_commands_are_as_a_user_would_type_them(tmp_path: Path) -> None:
    study = load_study(_write(tmp_path, GOOD))
    place = Place(Path("studies/x"))
    (trial,) = plan_trials(study, place, data="my photos/")
    command = as_text(pretrain_command(trial, place, ["trainer.steps=5"]))
    assert command == (
        "asterism pretrain dino-scenes --out studies/x/runs/dino-0 --data 'my photos/' "
        "--init none trainer.seed=0 trainer.steps=5"
    )
    evaluation = as_text(evaluate_command(trial, place, study.evaluations[0]))
    assert evaluation.startswith("asterism evaluate studies/x/runs/dino-0 --protocols knn --out studies/x/evaluations/")


def test_commands_describe_weights(tmp_path: Path) -> None:
    one = "a: {recipe: adapt, init: w.pth, weights_options: [heads=4]}"
    runs = f"runs: {{{one}, b: {{model: w.pth, weights_options: [std=1]}}}}"
    study = load_study(_write(tmp_path, f"{runs}\nevaluations: [{{protocols: [knn], columns: [knn.top1_k20]}}]"))
    place = Place(Path("studies/x"))
    trained, evaluated = plan_trials(study, place)
    assert "--init w.pth --weights-option heads=4" in as_text(pretrain_command(trained, place, []))
    assert "--weights-option" not in as_text(evaluate_command(trained, place, study.evaluations[0]))
    assert "--weights-option std=1" in as_text(evaluate_command(evaluated, place, study.evaluations[0]))
    assert "weights_options" not in specification(replace(trained, weights_options=()))


def test_a_changed_evaluation_has_another_folder(tmp_path: Path) -> None:
    place = Place(tmp_path)
    first, second = (
        load_study(_write(tmp_path, text)).evaluations[0]
        for text in (GOOD, GOOD.replace("k=20,", "k=20, knn.seed=1,").replace("k=20]", "k=20, knn.seed=1]"))
    )
    assert place.results("a", first) != place.results("a", second)


def _write(folder: Path, text: str) -> str:
    path = folder / "study.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)
