"""How training uses the cores of a CPU; their number does not change the result."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from asterism.config import write_yaml
from asterism.errors import UserError
from asterism.train import loop, processes, start
from asterism.train.cores import SMALL, allowed_cores, process_count, starts_processes, thread_count
from asterism.train.recipe import TrainerConfig
from tests.train.tiny import tiny_recipe


def trainer(**settings: object) -> TrainerConfig:
    return TrainerConfig(**({"batch_size": 64, "steps": 1000, "accelerator": "cpu"} | settings))


@pytest.mark.parametrize(
    ("settings", "parameters", "cores", "count"),
    [
        ({}, 10**6, 2, 2),
        ({}, SMALL + 1, 2, 1),  # large matrices keep several threads busy
        ({}, 10**6, 1, 1),
        ({"steps": 100}, 10**6, 2, 1),  # finished before the second process has started
        ({"steps": None, "minutes": 0.5}, 10**6, 2, 1),
        ({"steps": None, "minutes": 30}, 10**6, 2, 2),
        ({"steps": None, "epochs": 3}, 10**6, 2, 2),
        ({}, 10**6, 8, 4),  # 16 images each
        ({"batch_size": 256}, 10**6, 8, 8),
        ({"batch_size": 63}, 10**6, 2, 1),
        ({"batch_size": 96}, 10**6, 4, 4),
        ({"batch_size": 66, "accumulate": 3}, 10**6, 2, 2),
        ({"batch_size": 64, "accumulate": 64}, 10**6, 2, 1),
        ({"batch_size": "auto"}, 10**6, 2, 2),
        ({"devices": 1}, 10**6, 2, 1),
        ({"devices": 3}, SMALL + 1, 2, 3),
    ],
)
def test_processes(settings: dict[str, object], parameters: int, cores: int, count: int) -> None:
    assert process_count(trainer(**settings), parameters, cores) == count


@pytest.mark.parametrize(
    ("parameters", "count", "workers", "cores", "threads"),
    [
        (10**6, 2, 0, 2, 1),
        (10**6, 1, 1, 2, 1),  # the worker gets the other core
        (10**8, 1, 1, 2, 2),
        (10**6, 4, 0, 8, 2),
        (10**6, 1, 3, 2, 1),
    ],
)
def test_threads(parameters: int, count: int, workers: int, cores: int, threads: int) -> None:
    assert thread_count(parameters, count, workers, cores) == threads


@pytest.mark.parametrize(("limit", "count"), [("1", 1), ("2,1", 2), ("many", 4), ("", 4), ("64", 4)])
def test_omp_num_threads_limits_the_cores(limit: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asterism.train.cores.cores", lambda: 4)
    monkeypatch.setenv("OMP_NUM_THREADS", limit)
    assert allowed_cores() == count
    assert process_count(trainer(), 10**6) == count


def test_no_processes_are_started_inside_a_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "SLURM_NTASKS"):
        monkeypatch.delenv(name, raising=False)
    assert starts_processes(trainer())
    assert not starts_processes(trainer(strategy="fsdp"))
    assert not starts_processes(trainer(nodes=2))
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert not starts_processes(trainer())


@pytest.mark.slow
def test_two_processes_train_and_resume_the_same_run(tmp_path: Path) -> None:
    """Both runs start from one process, which is the only one in between and afterwards."""
    alone = start.pretrain(tiny_recipe("dino"), tmp_path / "alone")
    settings = {"devices": 2, "steps": 6}
    both = start.pretrain(tiny_recipe("dino", trainer=settings, checkpoint={"every_steps": 3}), tmp_path / "both")
    expected, found = ([record["loss"] for record in run.metrics() if "loss" in record] for run in (alone, both))
    assert found == pytest.approx(expected, rel=1e-5, abs=1e-5)

    os.truncate(both.path / "metrics.jsonl", 0)
    for path in sorted(both.checkpoints.glob("step-00000006/*")):
        path.unlink()
    (both.checkpoints / "step-00000006").rmdir()
    whole = load_file(both.weights)
    again = start.resume(both.path)
    assert all(value.equal(whole[name]) for name, value in load_file(again.weights).items())


@pytest.mark.slow
def test_a_process_that_dies_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []
    start_process = processes._start
    monkeypatch.setattr(processes, "_start", lambda *values: started.append(start_process(*values)) or started[-1])
    update = loop.Training._update

    def kill_the_other(self: loop.Training, *values: object) -> None:
        started[0].send_signal(signal.SIGKILL)
        started[0].wait()
        update(self, *values)  # type: ignore[arg-type]

    monkeypatch.setattr(loop.Training, "_update", kill_the_other)
    with pytest.raises(UserError, match=r"a training process died \(killed by SIGKILL\)"):
        start.pretrain(tiny_recipe("dino", trainer={"devices": 2}), tmp_path / "run")


@pytest.mark.slow
def test_an_error_on_all_processes_is_printed_once(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(write_yaml(tiny_recipe("dino", trainer={"devices": 2}, data={"path": str(tmp_path / "none")})))
    call = [sys.executable, "-m", "asterism", "pretrain", str(recipe), "--out", str(tmp_path / "run")]
    result = subprocess.run(call, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert (result.stdout + result.stderr).count("none") == 1
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "run").exists()
