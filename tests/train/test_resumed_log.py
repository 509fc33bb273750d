"""The log of a run that was interrupted anywhere equals that of an undisturbed one, except for times."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from asterism.methods.dino import Dino
from asterism.ops.collectives import rank
from asterism.train.metrics import read_metrics
from asterism.train.monitor import LoggingConfig, Monitor
from asterism.types import Losses, Progress
from tests import distributed
from tests.train.tiny import Killed, pretrain, resume, tiny_recipe

_TIMES = {"images_per_second", "data_wait_share", "cpu_seconds", "seconds"}
_STEPS, _EVERY, _BATCH = 60, 4, 8


def logged(run: Path) -> list[dict[str, Any]]:
    records = read_metrics(run)
    return [{name: value for name, value in record.items() if name not in _TIMES} for record in records]


# --- one monitor, and one that is replaced by another somewhere -----------------------------------------------------


def _monitor(run: Path | None, start: int = 0) -> Monitor:
    config = LoggingConfig(log_every=_EVERY, tensorboard=False)
    return Monitor(config, run, start, _STEPS, {"dino": 3.0})


def _train(monitor: Monitor, start: int, end: int) -> dict[str, Tensor]:
    """Two micro-batches a step, whose features lose rank and whose loss becomes ln K."""
    with monitor:
        for step in range(start, end):
            draw = torch.Generator().manual_seed(100 * step + rank())
            for _ in range(2):
                rows = torch.randn(_BATCH, 6, generator=draw) * torch.tensor([1.0] + [0.9**step] * 5)
                loss = 3.0 + 0.5 * torch.rand((), generator=draw) * (step < 20)
                metrics = {"sometimes": torch.rand((), generator=draw)} if step % 3 == 0 else {}
                monitor.micro_batch(Losses({"dino": loss}, metrics=metrics, embeddings=rows))
            monitor.step(Progress(step + 1, _STEPS, 10), images=_BATCH, waited=0.0, settled=True, numbers={"lr": 0.1})
        return monitor.state()


def interrupted_at(folder: Path, step: int) -> list[dict[str, Any]]:
    run = folder if rank() == 0 else None
    kept = _train(_monitor(run), 0, step)
    resumed = _monitor(run, step)
    resumed.restore(kept)
    _train(resumed, step, _STEPS)
    return logged(folder)


def undisturbed(folder: Path) -> list[dict[str, Any]]:
    _train(_monitor(folder if rank() == 0 else None), 0, _STEPS)
    return logged(folder)


def test_a_monitor_continues_another(tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    whole = undisturbed(tmp_path / "whole")
    warnings = [record["warning"].split(":")[0] for record in whole if "warning" in record]
    assert len(warnings) == 3, "the loss, the rank and the spread are warned about, each once"
    for step in (1, 2, 3, 4, 21, 22, 27, 41, _STEPS - 1):
        place = tmp_path / str(step)
        place.mkdir()
        assert interrupted_at(place, step) == whole, step


def _both(folder: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    return undisturbed(Path(folder) / "whole"), interrupted_at(Path(folder) / "parts", 22)


def test_so_does_that_of_two_processes(tmp_path: Path) -> None:
    for name in ("whole", "parts"):
        (tmp_path / name).mkdir()
    (whole, parts), _ = distributed.run(_both, str(tmp_path))
    assert parts == whole


def test_another_number_of_processes_continues_from_the_mean(tmp_path: Path) -> None:
    monitor = _monitor(None)
    monitor.restore({"sum.loss": torch.tensor([[2.0, 2.0], [4.0, 2.0]])})
    assert monitor.state()["sum.loss"].tolist() == [[3.0, 2.0]]


# --- whole runs ------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_a_killed_run_logs_what_an_undisturbed_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed after step 4, whose checkpoint is the fourth of the five steps between two records; and again after 6."""
    recipe = tiny_recipe(
        checkpoint={"every_steps": 2, "keep_last": 9}, monitor={"log_every": 5}, trainer={"steps": 7, "batch_size": 8}
    )
    whole, parts = pretrain(recipe, tmp_path / "whole"), tmp_path / "parts"
    after_update = Dino.after_update
    for number, killed_at in enumerate((4, 6)):

        def killed(self: Any, progress: Any, at: int = killed_at) -> None:
            after_update(self, progress)
            if progress.step == at:
                raise Killed

        with monkeypatch.context() as patch:
            patch.setattr(Dino, "after_update", killed)
            with pytest.raises(Killed):
                resume(parts) if number else pretrain(recipe, parts)
    resume(parts)
    records = logged(whole.path)
    assert [record["step"] for record in records if "loss" in record] == [5, 7]
    assert logged(parts) == records
