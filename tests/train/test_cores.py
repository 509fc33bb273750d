"""How training uses the cores of a CPU; their number does not change the result."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image
from safetensors.torch import load_file

from asterism.config import write_yaml
from asterism.errors import UserError
from asterism.train import checkpoint, loop, processes
from asterism.train.cores import SMALL, allowed_cores, process_count, thread_count
from asterism.train.kind import Request
from asterism.train.plan import plan
from asterism.train.pretraining import PRETRAINING
from asterism.train.recipe import TrainerConfig
from tests.train.tiny import pretrain, resume, tiny_recipe


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


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"nodes": 2}, "trainer.nodes = 2, but neither torchrun nor srun has started this process"),
        ({"devices": 1000}, r"1000 processes \(trainer.devices\) are too many for \d+ cores"),
    ],
)
@pytest.mark.parametrize("ask", [pretrain, lambda recipe, out: plan(recipe)])
def test_devices_that_are_not_there(
    ask: Callable[..., object], settings: dict[str, int], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message):
        ask(tiny_recipe("mae", trainer=settings), tmp_path / "run")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_two_processes_train_and_resume_the_same_run(tmp_path: Path) -> None:
    """Both runs start from one process, which is the only one in between and afterwards."""
    alone = pretrain(tiny_recipe("dino"), tmp_path / "alone")
    settings = {"devices": 2, "steps": 6}
    both = pretrain(tiny_recipe("dino", trainer=settings, checkpoint={"every_steps": 3}), tmp_path / "both")
    expected, found = ([record["loss"] for record in run.metrics() if "loss" in record] for run in (alone, both))
    assert found == pytest.approx(expected, rel=1e-5, abs=1e-5)

    os.truncate(both.path / "metrics.jsonl", 0)
    for path in sorted(both.checkpoints.glob("step-00000006/*")):
        path.unlink()
    (both.checkpoints / "step-00000006").rmdir()
    whole = load_file(both.weights)
    again = resume(both.path)
    assert all(value.equal(whole[name]) for name, value in load_file(again.weights).items())


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts descriptors in /proc")
def test_a_process_that_cannot_start_leaves_nothing_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> processes._Other:
        raise OSError("no more processes")

    monkeypatch.setattr(processes, "_start", fail)
    request = Request(PRETRAINING, tiny_recipe(), tmp_path / "run")
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(OSError, match="no more processes"), processes.started_processes(request, 3):
        pass
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.slow
def test_a_process_that_dies_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is killed before the first update."""
    started: list[processes._Other] = []
    start_process = processes._start
    monkeypatch.setattr(processes, "_start", lambda *values: started.append(start_process(*values)) or started[-1])
    update = loop.Training._update

    def disturbed(self: loop.Training, *values: object) -> None:
        started[0].process.kill()
        update(self, *values)  # type: ignore[arg-type]

    monkeypatch.setattr(loop.Training, "_update", disturbed)
    with pytest.raises(UserError, match=r"a training process died \(killed by SIGKILL\).*No checkpoint had been saved"):
        pretrain(tiny_recipe("dino", trainer={"devices": 2}), tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("bad", [1, 3])  # an image of the first process, or of the second
def test_data_that_one_process_cannot_read_is_an_error_of_the_run(tmp_path: Path, bad: int) -> None:
    """In the second step, which the other process has begun."""
    folder = tmp_path / "images"
    folder.mkdir()
    for number in range(8):
        Image.new("RGB", (20, 20), (30 * number, 0, 0)).save(folder / f"{number}.png")
    (folder / f"{4 + bad}.png").write_bytes(b"not an image")
    data = {"path": str(folder), "shuffle": False, "max_bad_share": 0.0}
    recipe = tiny_recipe("dino", trainer={"devices": 2, "batch_size": 4}, data=data)
    with pytest.raises(UserError, match=rf"{4 + bad}\.png"):
        pretrain(recipe, tmp_path / "run")
    metrics = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in metrics] == [1]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/net").exists(), reason="reads sockets and children from /proc")
def test_a_killed_first_process(tmp_path: Path) -> None:
    """While two processes train: they listen on loopback only, and the run is locked. After the first is killed, the
    other one says so and ends, and one process finishes the run."""
    recipe = tiny_recipe("mae", trainer={"devices": 2, "steps": 40}, checkpoint={"every_steps": 1})
    (tmp_path / "recipe.yaml").write_text(write_yaml(recipe))
    out = tmp_path / "run"
    call = [sys.executable, "-m", "asterism", "pretrain", str(tmp_path / "recipe.yaml"), "--out", str(out)]
    with (tmp_path / "printed").open("wb") as file:
        first = subprocess.Popen(call, stdout=file, stderr=file)
    while not checkpoint.steps(out / "checkpoints"):
        assert first.poll() is None, (tmp_path / "printed").read_text()
        time.sleep(0.05)
    (other,) = _children(first.pid)
    assert {address for pid in (first.pid, other) for address in _listening(pid)} == {"0100007F"}
    for again in (lambda: resume(out), lambda: pretrain(recipe, out), lambda: pretrain(recipe, out, overwrite=True)):
        with pytest.raises(UserError, match=rf"{out} is being written by process {first.pid} on .* since .*pretrain"):
            again()
    first.kill()
    first.wait()
    deadline = time.monotonic() + 30
    while Path(f"/proc/{other}").exists():
        assert time.monotonic() < deadline, "the other process is still there"
        time.sleep(0.05)
    printed = (tmp_path / "printed").read_text()
    assert "The first training process has ended, so this one ends too." in printed
    assert f"resume with: asterism pretrain --resume {out}" in printed
    assert "Traceback" not in printed

    done = checkpoint.steps(out / "checkpoints")[-1]
    alone = pretrain(
        tiny_recipe("mae", trainer={"steps": 40, "devices": 1}, checkpoint={"every_steps": 40}), tmp_path / "alone"
    )
    resumed = resume(out, ("trainer.devices=1", "checkpoint.every_steps=40"))
    assert done < 40
    expected, found = ([record["loss"] for record in run.metrics()] for run in (alone, resumed))
    assert found[:done] == pytest.approx(expected[:done], rel=1e-3)
    assert len(found) == 40


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _listening(pid: int) -> set[str]:
    """The addresses, in hexadecimal, on which a process accepts connections."""
    own = {
        str(link.readlink()).removeprefix("socket:[").removesuffix("]")
        for link in Path(f"/proc/{pid}/fd").iterdir()
        if link.is_symlink()
    }
    rows = [
        line.split() for kind in ("tcp", "tcp6") for line in Path(f"/proc/{pid}/net/{kind}").read_text().splitlines()
    ]
    return {row[1].partition(":")[0] for row in rows if row[3] == "0A" and row[9] in own}


@pytest.mark.slow
def test_an_error_on_all_processes_is_printed_once(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(write_yaml(tiny_recipe("dino", trainer={"devices": 2}, data={"path": str(tmp_path / "none")})))
    call = [sys.executable, "-m", "asterism", "pretrain", str(recipe), "--out", str(tmp_path / "run")]
    result = subprocess.run(call, capture_output=True, text=True, check=False, timeout=120)
    assert result.returncode == 2
    assert (result.stdout + result.stderr).count("none") == 1
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "run").exists()
