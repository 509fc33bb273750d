"""From the files of a study to its table, its CSV file and its curves."""

import csv
import io
import json
from pathlib import Path

import pytest

from asterism.errors import UserError
from asterism.evals.result import DataUsed, Result
from asterism.extras.studies.outcome import Outcome, read_outcome
from asterism.extras.studies.page import charts, mean_curve
from asterism.extras.studies.plan import Place, plan_trials
from asterism.extras.studies.records import check_specifications, write_record
from asterism.extras.studies.speed import speed_of
from asterism.extras.studies.study import StudyConfig
from asterism.extras.studies.table import markdown, results_csv, rows_of
from asterism.train.run import Run
from asterism.types import Model

STUDY = StudyConfig.parse(
    {
        "steps": 4,
        "seeds": [0, 1, 2],
        "runs": {"a": {"recipe": "dino-scenes"}, "b": {"recipe": "mae-scenes"}, "pixels": {"model": "pixels"}},
        "evaluations": [{"protocols": ["knn"], "settings": ["knn.k=20"], "columns": {"k-NN": "knn.top1_k20"}}],
    }
)
SCORES = [10.0, 20.0, 60.0]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """All seeds of run a are finished, b failed, pixels are evaluated."""
    place = Place(tmp_path)
    for trial in plan_trials(STUDY, place):
        failed = {"training": "the loss is not finite | see log"} if trial.run == "b" else {}
        write_record(place, trial, failed)
        if trial.run == "a":
            _write_run(place.run(trial.name), done=4)
        if trial.run != "b":
            value = SCORES[trial.seed] if trial.run == "a" else 5.0
            _write_result(place.results(trial.name, STUDY.evaluations[0]), {"top1_k20": value})
    return place


def test_the_table_has_mean_interval_length_and_speed(place: Place) -> None:
    text = markdown(rows_of(_outcomes(place)), STUDY.columns)
    assert "| run | seeds | steps | core-minutes | images/s | k-NN |" in text
    assert "| a | 3 | 4 | 2.0 | 10 | 30.00 (±65.73) |" in text  # 4.303 · 26.46/√3
    assert "| pixels | 1 | – | – | – | 5.00 |" in text
    assert "Student's t" in text


def test_a_failed_run_is_a_row_with_its_reason(place: Place) -> None:
    text = markdown(rows_of(_outcomes(place)), STUDY.columns)
    assert "| b | 3 | – | – | – | the loss is not finite / see log |" in text
    assert "- b: the loss is not finite | see log" in text


def test_the_csv_file_has_a_line_for_every_trial_in_full_precision(place: Place) -> None:
    rows = list(csv.DictReader(io.StringIO(results_csv(_outcomes(place), STUDY.columns))))
    assert [row["run"] for row in rows] == ["a", "b", "pixels", "a", "b", "a", "b"]
    assert rows[0] | {"problems": ""} == {
        "run": "a", "budget": "4 steps", "seed": "0", "steps": "4", "images": "32", "core_minutes": "2.0000",
        "images_per_second": "10.00", "k-NN": "10.0", "problems": "",
    }  # fmt: skip
    assert "not finite" in rows[1]["problems"]


def test_curves_are_means_over_seeds_against_images_and_core_minutes(place: Place) -> None:
    (row,) = [row for row in rows_of(_outcomes(place)) if row.name == "a"]
    assert mean_curve(row, "knn", "images") == [(16.0, 20.0), (32.0, 40.0)]
    assert mean_curve(row, "knn", "core_minutes") == [(1.0, 20.0), (2.0, 40.0)]
    drawn = charts([row])
    for title in ("Online k-NN accuracy (%) against images seen", "Loss against core-minutes"):
        assert title in drawn


def test_missing_results_are_explained(place: Place) -> None:
    trial = plan_trials(STUDY, place)[0]
    _write_run(place.run(trial.name), done=3)
    assert read_outcome(STUDY, trial, place).problems == ("unfinished: 3 of 4 steps",)
    wrong = place.results("pixels", STUDY.evaluations[0])
    _write_result(wrong, {"top1_k5": 1.0})
    (pixels,) = [outcome for outcome in _outcomes(place) if outcome.trial.run == "pixels"]
    assert pixels.problems == ("knn has no value 'top1_k20'; with these settings it gives: top1_k5",)


def test_a_folder_with_trials_of_other_settings_is_refused(place: Place) -> None:
    changed = STUDY.model_copy(update={"settings": ("optim.lr=1e-3",)})
    with pytest.raises(UserError, match=r"a-0 was made with different settings \(settings\)"):
        check_specifications(plan_trials(changed, place), place)
    check_specifications(plan_trials(STUDY, place), place)


def test_speed_is_that_of_the_fastest_stretch(place: Place) -> None:
    run = Run(place.run("a-0"))
    records = [
        {"step": 10, "images_per_second": 40.0, "cpu_seconds": 9.0},
        {"step": 20, "images_per_second": 20.0, "cpu_seconds": 5.0},
        {"step": 20, "knn": 3.0},
    ]
    (run.path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    speed = speed_of(run)
    assert speed.core_seconds_per_step == pytest.approx(0.5)
    assert speed.seconds_per_step == pytest.approx(8 / 40)


def _outcomes(place: Place) -> list[Outcome]:
    return [read_outcome(STUDY, trial, place) for trial in plan_trials(STUDY, place)]


def _write_run(folder: Path, done: int) -> None:
    """Two steps take one core-minute; ten images per second of wall-clock time."""
    (folder / "checkpoints" / f"step-{done:08d}").mkdir(parents=True, exist_ok=True)
    for other in (folder / "checkpoints").iterdir():
        if other.name != f"step-{done:08d}":
            other.rmdir()
    (folder / "config.yaml").write_text("method: dino\ndata: {path: scenes}\ntrainer: {steps: 4, batch_size: 8}\n")
    records = [{"step": s, "loss": 1.0 / s, "images_per_second": 10.0, "cpu_seconds": 60.0} for s in (2, 4)]
    records.insert(1, {"step": 2, "knn": 20.0})
    records.append({"step": 4, "knn": 40.0})
    kept = [record for record in records if record["step"] <= done]
    kept += [{"step": 3, "loss": 1.0, "images_per_second": 10.0, "cpu_seconds": 30.0}] if done == 3 else []
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in kept))


def _write_result(folder: Path, values: dict[str, float]) -> None:
    used = DataUsed("scenes", 10, "f")
    Result("knn", values, {}, Model("m"), used, used, 1.0).write(folder)
