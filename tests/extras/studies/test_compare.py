"""A whole study, run in real processes: finished work is not repeated, interrupted work is resumed."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

import asterism
from asterism import cli
from asterism.extras.studies import speed
from asterism.train import checkpoint
from asterism.train.run import Run

ROOT = Path(asterism.__file__).parents[1]
STUDY = """
steps: 4
settings: [backbone.image_size=16, backbone.patch_size=8, backbone.dim=16, backbone.depth=1, backbone.heads=2,
  trainer.batch_size=4, monitor.tensorboard=false, monitor.log_every=1, checkpoint.every_steps=2,
  method.decoder_dim=16, method.decoder_depth=1, method.decoder_heads=2, "data.path='scenes:size=16,count=40'"]
runs:
  pixels: {model: pixels}
  mae: {recipe: mae}
  later: {recipe: mae, after: mae, core_minutes: 0.005}
  broken: {recipe: mae, settings: [optim.lr=1.0e+12]}
evaluations:
  - {data: "scenes:size=16,count=40", protocols: [knn], settings: [knn.k=5], columns: {k-NN: knn.top1_k5}}
"""


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(speed, "STRETCHES", 2)
    monkeypatch.setattr(speed, "STRETCH", 2)
    path = tmp_path / "study.yaml"
    path.write_text(STUDY, encoding="utf-8")
    return path


@pytest.mark.slow
def test_a_study_is_run_resumed_and_never_repeated(study: Path) -> None:
    first = asterism.compare(study, "out", jobs=2)
    found = {row.name: row for row in first.rows}
    assert list(found) == ["pixels", "mae", "later", "broken"]
    assert [bool(row.value("k-NN")) for row in found.values()] == [True, True, True, False]
    assert "not finite" in found["broken"].problems[0]
    assert found["later"].outcomes[0].steps > 1  # as many as fit into the budget
    assert [outcome.steps for outcome in found["mae"].outcomes] == [4]
    for name in ("table.md", "results.csv", "report.html", "study.yaml"):
        assert (Path("out") / name).is_file(), name

    weights = Path("out/runs/mae-0/encoder.safetensors")
    before, logged = weights.read_bytes(), Path("out/logs/mae-0.log").read_text()
    shutil.rmtree("out/runs/mae-0/checkpoints/step-00000004")  # as if killed after step 2
    shutil.rmtree("out/evaluations/mae-0")
    weights.unlink()
    second = asterism.compare(study, "out", jobs=2, only=["mae"])
    assert weights.read_bytes() == before
    assert "pretrain --resume" in Path("out/logs/mae-0.log").read_text()[len(logged) :]
    assert [row.name for row in second.rows] == ["pixels", "mae", "later", "broken"]  # the others are still there

    logged = Path("out/logs/mae-0.log").read_text()
    asterism.compare(study, "out", jobs=2, only=["mae", "pixels"])
    assert Path("out/logs/mae-0.log").read_text() == logged


@pytest.mark.slow
def test_a_study_that_is_stopped_saves_its_runs(study: Path) -> None:
    study.write_text(STUDY.replace("steps: 4", "steps: 100000").replace("every_steps=2", "every_steps=100000"))
    command = [sys.executable, "-m", "asterism", "compare", str(study), "--out", "out", "--only", "mae"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=os.environ, text=True)
    log = Path("out/runs/mae-0/metrics.jsonl")
    deadline = time.monotonic() + 240
    while not (log.is_file() and log.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.2)
    process.terminate()
    words, _ = process.communicate(timeout=120)
    assert process.returncode == 128 + 15, words
    assert "the same command" in words
    assert checkpoint.steps(Path("out/runs/mae-0/checkpoints"))


@pytest.mark.slow
def test_a_repeated_study_waits_for_what_a_killed_one_left_running(study: Path) -> None:
    study.write_text(STUDY.replace("steps: 4", "steps: 60").replace("every_steps=2", "every_steps=100000"))
    command = [sys.executable, "-m", "asterism", "compare", str(study), "--out", "out", "--only", "mae"]
    log = Path("out/runs/mae-0/metrics.jsonl")
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        while not (log.is_file() and log.stat().st_size):
            assert process.poll() is None
            time.sleep(0.05)
        process.kill()
    (row,) = asterism.compare(study, "out", jobs=1, only=["mae"]).rows
    assert not row.problems
    assert Path("out/logs/mae-0.log").read_text().count("$ asterism pretrain") == 1
    assert [record["step"] for record in Run(log.parent).metrics() if "loss" in record] == [*range(1, 61)]


def test_a_plan_is_shown_and_nothing_is_done(study: Path) -> None:
    done = CliRunner().invoke(cli.app, ["compare", str(study), "--out", "out", "--dry-run"])
    assert done.exit_code == 0
    assert "4 trials in out" in done.output
    assert "mae-0: 4 steps" in done.output
    assert "later-0: 0.005 core-minutes, converted to steps when it starts, after mae-0" in done.output
    assert "asterism pretrain mae --out out/runs/mae-0" in done.output
    assert not Path("out").exists()


def test_models_are_evaluated_on_the_data_of_the_study(study: Path) -> None:
    """A run is evaluated on what it was trained on; raw pixels have nothing of their own."""
    study.write_text(STUDY.replace('data: "scenes:size=16,count=40", ', ""), encoding="utf-8")
    data = "scenes:size=16,count=50"
    done = CliRunner().invoke(cli.app, ["compare", str(study), "--out", "out", "--dry-run", "--data", data])
    assert f"asterism evaluate pixels --protocols knn --data {data}" in done.output
    assert "asterism evaluate out/runs/mae-0 --protocols knn --out" in done.output


def test_scripts_are_written_instead(study: Path) -> None:
    study.write_text(STUDY.replace(", core_minutes: 0.005", ""), encoding="utf-8")
    done = CliRunner().invoke(cli.app, ["compare", str(study), "--out", "out", "--launch", "slurm", "--devices", "2"])
    assert done.exit_code == 0
    assert "bash out/scripts/start.sh" in done.output
    assert "#SBATCH --gpus-per-node=2" in Path("out/scripts/mae-0.sh").read_text()
    wrong = CliRunner().invoke(cli.app, ["compare", str(study), "--out", "o2", "--launch", "slrum"])
    assert wrong.exit_code == 2
    assert "did you mean 'slurm'" in wrong.output
