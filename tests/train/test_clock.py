"""Minutes mean minutes: the clock, runs on a clock that the test moves, and real runs beside other work."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from asterism.errors import Interrupted
from asterism.finetuning.classification.classify import Classify
from asterism.finetuning.task import TaskBatch
from asterism.methods.mae import Mae
from asterism.ops import collectives
from asterism.train import checkpoint, clock
from asterism.train.clock import Clock, expected_steps, fitting_stride, share_in
from asterism.train.optim import learning_rate
from asterism.train.recipe import load_recipe
from asterism.train.run import Run
from asterism.types import Batch, Losses, Progress
from tests import distributed
from tests.extras.words.tiny import aligned
from tests.finetuning.tiny import coloured_folder, finetune, tiny
from tests.train.tiny import pretrain, resume, tiny_recipe


class Time:
    """Seconds that pass when a test lets them."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def hands(monkeypatch: pytest.MonkeyPatch) -> Time:
    made = Time()
    monkeypatch.setattr(clock, "time", made)
    return made


@pytest.mark.parametrize("seconds", [lambda t: 0.7, lambda t: 0.5 if t < 50 else 2.5, lambda t: 2.5 if t < 50 else 0.5])
def test_the_share_of_the_time_is_that_of_the_clock_at_any_speed(
    hands: Time, seconds: Callable[[float], float]
) -> None:
    watch = Clock(2.0, hands.now)
    hands.now += 20  # data is opened
    with watch.timed("measurement"):
        hands.now += 4
    first, shares = 24 + seconds(24), list[float]()
    while not shares or shares[-1] < 1:
        hands.now += seconds(hands.now - 1000)
        shares.append(watch.read())
        passed = (hands.now - 1000 - first) / (120 - 4 - first)
        assert shares[-1] == pytest.approx(min(1, passed), abs=0.015)
    assert shares[0] == 0, "the first step also starts workers"
    assert hands.now - 1000 + 4 == pytest.approx(120, abs=seconds(120) / 2 + 0.5), "what comes at the end fits too"
    assert shares == sorted(shares)


def test_steps_follow_from_the_share() -> None:
    assert [expected_steps(step, share) for step, share in ((50, 0.1), (3, 0.5), (7, 1.0), (1, 0.999))] == [
        500,
        6,
        7,
        2,
    ]
    assert expected_steps(1, 0.0) > 1000, "before any step is timed"


def test_what_was_used_before_an_interruption_counts(hands: Time) -> None:
    watch = Clock(1.0, hands.now)
    hands.now += 10
    while watch.read() < 0.5:
        hands.now += 1
    kept, used = watch.state(), hands.now - 1000
    hands.now += 500  # switched off
    began = hands.now
    again = Clock(1.0, began)
    again.restore(kept)
    hands.now += 8  # opening it again
    assert again.read() == share_in(kept), "the progress continues where it was"
    shares = [again.read()]
    while shares[-1] < 1:
        hands.now += 1
        shares.append(again.read())
    assert shares == sorted(shares)
    assert used + hands.now - began == pytest.approx(60, abs=1)


def test_steps_need_no_clock(hands: Time) -> None:
    watch = Clock(None, hands.now)
    hands.now += 1e9
    assert (watch.read(), watch.state()) == (0.0, {})


def test_measuring_takes_a_fifth_of_the_time_at_most(hands: Time) -> None:
    watch = Clock(1.0, hands.now)
    assert watch.has_rested
    with watch.timed("measurement"):
        hands.now += 2
    hands.now += 7
    assert not watch.has_rested
    hands.now += 1.5
    assert watch.has_rested


def test_measurements_take_fewer_images_where_all_would_take_too_long(hands: Time) -> None:
    def slow(images: range) -> None:
        hands.now += 0.5 * len(images)

    assert fitting_stride(50, 300, slow) == 1, "150 of 3000 seconds"
    assert fitting_stride(10, 3000, slow) == 30, "as many as take a twentieth, but not fewer than a hundred"
    assert fitting_stride(100, 3000, slow) == 5
    assert fitting_stride(1, 10, slow) == 1


# --- runs whose steps take as long as the test says ------------------------------------------------------------------


@pytest.fixture
def slow_half(hands: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step takes a second, and three from half a minute on."""
    loss = Mae.loss

    def timed(method: Mae, batch: Batch, progress: Progress) -> Losses:
        hands.now += 1 if hands.now < 1030 else 3
        return loss(method, batch, progress)

    monkeypatch.setattr(Mae, "loss", timed)


def _recipe(**sections: dict[str, Any]) -> Any:
    return tiny_recipe("mae", **{"trainer": {"steps": None, "minutes": 1.0}} | sections)


@pytest.mark.usefixtures("slow_half")
def test_schedules_of_a_run_follow_the_clock(tmp_path: Path, hands: Time) -> None:
    optim = {"warmup_share": 0.2, "lr": 1.0, "lr_scaling": "none", "min_lr": 0.0}
    run = pretrain(_recipe(optim=optim), tmp_path / "run", began=hands.now)
    records = [record for record in run.metrics() if "loss" in record]
    assert hands.now - 1000 == pytest.approx(60, abs=1.5)
    assert len(records) == 40, "thirty steps of a second, ten of three"
    assert records[-1]["share_of_time"] == 1
    config = run.recipe.optim
    by_time = [learning_rate(config, Progress(round(10_000 * r["share_of_time"]), 10_000, 5), 8) for r in records[:-1]]
    assert [record["lr"] for record in records[1:]] == pytest.approx(by_time, abs=0.08)  # whole steps
    assert records[29]["share_of_time"] == pytest.approx(0.49, abs=0.02)
    assert share_in(checkpoint.read(run.checkpoints).log) == 1
    assert run.encoder().step == 40
    assert (run.recipe.trainer.steps, run.recipe.trainer.minutes) == (None, 1.0)


@pytest.mark.usefixtures("slow_half")
def test_a_run_measures_ten_times_and_at_its_end(tmp_path: Path, hands: Time) -> None:
    run = pretrain(_recipe(monitor={"knn": {"bank": 16, "queries": 8, "k": 3}}), tmp_path / "run", began=hands.now)
    measured = [record["step"] for record in run.metrics() if "knn" in record]
    assert measured[0] == 0
    assert measured[-1] == run.metrics()[-1]["step"]
    assert 10 <= len(measured) <= 12


@pytest.mark.usefixtures("slow_half")
def test_a_resumed_run_has_what_is_left_of_its_minutes(
    tmp_path: Path, hands: Time, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    after_update = Mae.after_update

    def stopped(method: Mae, progress: Progress) -> None:
        after_update(method, progress)
        if progress.step == 12:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(Mae, "after_update", stopped)
        with pytest.raises(Interrupted, match="of the run"):
            pretrain(_recipe(), tmp_path / "run", began=hands.now)
    used = hands.now - 1000
    hands.now += 7  # beyond half a minute: all steps take three seconds now
    began = hands.now
    run = resume(tmp_path / "run", began=began)
    shares = [record["share_of_time"] for record in run.metrics() if "loss" in record]
    assert shares == pytest.approx(sorted(shares), abs=0.01)  # of whole steps
    assert shares[12:14] == pytest.approx([0.22, 0.22], abs=0.02), "the progress continues where it was"
    assert used + hands.now - began == pytest.approx(60, abs=2)
    resume(run.path)
    assert f"is finished: its {len(shares)} steps are done" in capsys.readouterr().out


def _in_two_processes(folder: str) -> list[int]:
    """Fine-tuning, whose measurements need both processes. The clock of the second stands still."""
    hands, loss = Time(), Classify.loss
    clock.time = hands  # type: ignore[assignment]

    def timed(task: Classify, batch: TaskBatch, progress: Progress) -> Losses:
        hands.now += 2 * (collectives.rank() == 0)
        return loss(task, batch, progress)

    Classify.loss = timed  # type: ignore[method-assign]
    changes = ["trainer.steps=null", "trainer.minutes=1", "trainer.devices=auto", "validation.every_epochs=null"]
    run = finetune(tiny(Path(folder) / "data", *changes), Path(folder) / "run", began=hands.now)
    return checkpoint.steps(run.checkpoints)


@pytest.mark.slow
def test_processes_agree_on_the_time_of_the_first(tmp_path: Path) -> None:
    coloured_folder(tmp_path / "data")
    first, second = distributed.run(distributed.launched, _in_two_processes, str(tmp_path))
    assert first == second
    assert first[-1] == 30
    measured = [record["step"] for record in Run(tmp_path / "run").metrics() if "held_out/top1" in record]
    assert len(measured) == 11


# --- real runs, beside other work -------------------------------------------------------------------------------------


@pytest.fixture
def busy() -> Iterator[None]:
    """Twice as many other processes as cores, which come and go."""
    code = "import time\nwhile True:\n    e = time.time() + 3\n    while time.time() < e: pass\n    time.sleep(2)"
    others = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2 * (os.cpu_count() or 1))]
    yield
    for other in others:
        other.kill()
        other.wait()


def _pretrained(folder: Path, length: list[str], began: float) -> None:
    few = ["monitor.knn.bank=200", "monitor.knn.queries=100"]
    recipe = load_recipe("mae", ["data.path=scenes:size=64,count=2000", *few, *length])
    pretrain(recipe, folder / "run", began=began)


def _finetuned(folder: Path, length: list[str], began: float) -> None:
    data = coloured_folder(folder / "data", images=100)
    finetune(tiny(data, "trainer.steps=null", "validation.every_epochs=null", *length), folder / "run", began=began)


def _aligned(folder: Path, length: list[str], began: float) -> None:
    aligned(folder, *length)


@pytest.mark.slow
@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize("train", [_pretrained, _finetuned, _aligned])
def test_a_run_ends_in_time_beside_other_work(tmp_path: Path, train: Callable[[Path, list[str], float], None]) -> None:
    began = time.monotonic()
    train(tmp_path, ["trainer.minutes=1"], began)
    assert time.monotonic() - began == pytest.approx(60, rel=0.05)
