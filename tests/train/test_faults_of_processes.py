"""Processes that torchrun or srun start, while one of them is lost, stopped, different or restarted."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from asterism.config import write_yaml
from asterism.train import checkpoint
from tests.train.tiny import pretrain, resume, tiny_recipe

pytestmark = pytest.mark.slow

_TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
_LONG = ("trainer.steps=100000", "checkpoint.every_steps=100000", "checkpoint.every_minutes=null")


class Ranks:
    """Two processes of one run, as torchrun (without its agent) or srun would start them."""

    def __init__(self, folder: Path, launcher: str, *words: str, second: Sequence[str] = (), minutes: float = 10.0):
        (folder / "recipe.yaml").write_text(write_yaml(tiny_recipe("mae")))
        self.out, self._printed = folder / "run", [folder / "printed 0", folder / "printed 1"]
        call = [sys.executable, "-m", "asterism", "pretrain", str(folder / "recipe.yaml"), "--out", str(self.out)]
        self.processes, port = [], str(free_port())
        for rank, printed in enumerate(self._printed):
            with printed.open("wb") as file:
                own = [*call, *words, *(second if rank else ())]
                environment = os.environ | _place(launcher, str(rank), port) | {"ASTERISM_PATIENCE": str(minutes)}
                self.processes.append(subprocess.Popen(own, stdout=file, stderr=file, env=environment))

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
            process.wait()

    def ended(self) -> list[int]:
        return [process.wait(timeout=400) for process in self.processes]

    def printed(self, rank: int) -> str:
        return " ".join(self._printed[rank].read_text().split())

    def until(self, reached: Callable[[], bool]) -> None:
        while not reached():
            assert all(process.poll() is None for process in self.processes), self.printed(0) + self.printed(1)
            time.sleep(0.05)

    def until_they_train(self) -> None:
        log = self.out / "metrics.jsonl"
        self.until(lambda: log.exists() and log.stat().st_size > 0)


def _place(launcher: str, rank: str, port: str) -> Mapping[str, str]:
    if launcher == "srun":
        return {"SLURM_PROCID": rank, "SLURM_LOCALID": rank, "SLURM_NTASKS": "2", "MASTER_PORT": port}
    own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    return own | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def test_srun_with_tasks_alone(tmp_path: Path) -> None:
    """`srun -n2`, without --ntasks-per-node."""
    alone = pretrain(tiny_recipe("mae"), tmp_path / "alone")
    with Ranks(tmp_path, "srun") as ranks:
        assert ranks.ended() == [0, 0], ranks.printed(0) + ranks.printed(1)
    expected, found = (_losses(path) for path in (alone.path, ranks.out))
    assert found == pytest.approx(expected, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize(
    "different", ["optim.lr=0.01", "trainer.seed=7", "backbone.depth=3", "data.path=scenes:size=16,count=41"]
)
def test_processes_with_different_settings_are_refused(tmp_path: Path, different: str) -> None:
    with Ranks(tmp_path, "torchrun", second=[different]) as ranks:
        assert ranks.ended() == [2, 2]
    named = "the number of images" if "data" in different else different.partition("=")[0]
    for rank in range(2):
        assert f"Error: {named} is" in ranks.printed(rank)
        assert "in the process of rank 1, but" in ranks.printed(rank)
        assert "Traceback" not in ranks.printed(rank)
    assert not ranks.out.exists()


@pytest.mark.parametrize("stopped", [0, 1])
def test_a_stopped_process_is_named_and_given_up(tmp_path: Path, stopped: int) -> None:
    with Ranks(tmp_path, "torchrun", *_LONG, minutes=0.5) as ranks:
        ranks.until_they_train()
        ranks.processes[stopped].send_signal(signal.SIGSTOP)
        assert ranks.processes[1 - stopped].wait(timeout=200) == 2
    printed = ranks.printed(1 - stopped)
    assert f"Waiting for rank {stopped} of 2 since 1" in printed
    assert f"Error: rank {stopped} of 2 showed no sign of life for 0.5 minutes (ASTERISM_PATIENCE)" in printed
    assert "No checkpoint had been saved" in printed


def test_processes_that_were_suspended_together_go_on(tmp_path: Path) -> None:
    """For longer than a silent one would be awaited."""
    with Ranks(tmp_path, "torchrun", "trainer.steps=40", minutes=0.1) as ranks:
        ranks.until_they_train()
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for process in ranks.processes:
                process.send_signal(number)
            time.sleep(8 if number == signal.SIGSTOP else 0)
        assert ranks.ended() == [0, 0], ranks.printed(0) + ranks.printed(1)


@pytest.mark.parametrize(
    ("words", "said"),
    [(_LONG, "No checkpoint had been saved"), (("trainer.steps=100000",), "The last checkpoint is good")],
)
def test_a_killed_process(tmp_path: Path, words: Sequence[str], said: str) -> None:
    """The checkpoint is only praised where there is one."""
    with Ranks(tmp_path, "torchrun", *words) as ranks:
        ranks.until_they_train()
        if words != _LONG:
            ranks.until(lambda: bool(checkpoint.steps(ranks.out / "checkpoints")))
        ranks.processes[1].kill()
        assert ranks.processes[0].wait(timeout=200) == 2
    printed = ranks.printed(0)
    assert f"Error: lost the connection to another process: it was killed, or its machine failed. {said}" in printed
    assert "Traceback" not in printed
    assert ranks.out.exists() == (words != _LONG)


_KILLED_ONCE = """
import os, signal, sys
from asterism.cli import main
from asterism.methods.mae import Mae
after_update, last = Mae.after_update, int(sys.argv[1])
first_attempt, rank = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0", os.environ["RANK"]
def killed(self, progress):
    if first_attempt and progress.step == last and rank == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    after_update(self, progress)
Mae.after_update = killed
sys.argv = ["asterism", *sys.argv[2:]]
main()
"""


@pytest.mark.parametrize("step", [1, 4])  # before and after the first checkpoint
def test_torchrun_restarts_its_run(tmp_path: Path, step: int) -> None:
    alone = pretrain(tiny_recipe("mae"), tmp_path / "alone")
    (tmp_path / "recipe.yaml").write_text(write_yaml(tiny_recipe("mae", checkpoint={"every_steps": 3})))
    (tmp_path / "train.py").write_text(_KILLED_ONCE)
    out = tmp_path / "run"
    words = [str(tmp_path / "train.py"), str(step), "pretrain", str(tmp_path / "recipe.yaml"), "--out", str(out)]
    ended = subprocess.run(
        [*_TORCHRUN, "--max-restarts=1", *words], capture_output=True, text=True, check=False, timeout=400
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    expected, found = (_losses(path) for path in (alone.path, out))
    assert found == pytest.approx(expected, rel=1e-5, abs=1e-5)


def test_a_run_of_somebody_else_is_not_continued_by_a_restart(tmp_path: Path) -> None:
    pretrain(tiny_recipe("mae"), tmp_path / "run")
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    (tmp_path / "recipe.yaml").write_text(write_yaml(tiny_recipe("mae")))
    words = ["-m", "asterism", "pretrain", str(tmp_path / "recipe.yaml"), "--out", str(tmp_path / "run")]
    ended = subprocess.run(
        [*_TORCHRUN, "--max-restarts=1", *words], capture_output=True, text=True, check=False, timeout=400
    )
    assert ended.returncode != 0
    assert "run already exists; resume it with --resume" in " ".join(ended.stderr.split())
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize("first", [1, 2])
def test_another_number_of_nodes_resumes_a_run(tmp_path: Path, first: int) -> None:
    recipe, out = tiny_recipe("mae", checkpoint={"every_steps": 3}), tmp_path / "run"
    alone = pretrain(recipe, tmp_path / "alone")
    if first == 1:
        shutil.copytree(alone.path, out, symlinks=True)
    else:
        (tmp_path / "recipe.yaml").write_text(write_yaml(recipe))
        _on_two_nodes("pretrain", str(tmp_path / "recipe.yaml"), "--out", str(out))
    steps = checkpoint.steps(out / "checkpoints")
    assert steps[0] == 3
    for step in steps[1:]:  # as if it had been killed after step 3
        shutil.rmtree(out / f"checkpoints/step-{step:08d}")
    if first == 1:
        _on_two_nodes("pretrain", "--resume", str(out))
    else:
        resume(out)
    assert _losses(out) == pytest.approx(_losses(alone.path), rel=1e-5, abs=1e-5)


def _on_two_nodes(*words: str) -> None:
    """Two agents of torchrun on this machine, with a process each."""
    place = ["--nnodes=2", "--nproc-per-node=1", "--master-addr=127.0.0.1", f"--master-port={free_port()}"]
    agents = [
        subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", *place, f"--node-rank={rank}", "-m", "asterism", *words]
        )
        for rank in range(2)
    ]
    try:
        assert [agent.wait(timeout=400) for agent in agents] == [0, 0]
    finally:
        for agent in agents:
            agent.kill()


def _losses(run: Path) -> list[float]:
    records = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [record["loss"] for record in records if "loss" in record]
