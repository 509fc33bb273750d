"""Which trial runs when, and what is written meanwhile; the trials themselves do nothing here."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from asterism.errors import UserError
from asterism.extras.studies import compare, runner
from asterism.extras.studies.compare import Comparison, Planned, plan_study, run_study
from asterism.extras.studies.plan import Trial

STUDY = """
steps: 4
data: "scenes:size=16,count=40"
runs:
  long: {recipe: mae}
  short: {recipe: mae}
  after-long: {recipe: mae, after: long}
  after-short: {recipe: mae, after: short}
"""
PATIENCE = 30.0  # seconds


@pytest.fixture
def planned(tmp_path: Path) -> Planned:
    study = tmp_path / "study.yaml"
    study.write_text(STUDY, encoding="utf-8")
    return plan_study(str(study), tmp_path / "out", None, ())


def replace_trials(monkeypatch: pytest.MonkeyPatch, run: Callable[[Trial], None]) -> None:
    def trial(self: runner._Workers, trial: Trial, slot: runner.Slot) -> None:
        run(trial)
        self._report(trial, {})

    monkeypatch.setattr(runner._Workers, "_trial", trial)


def test_a_trial_that_waits_for_another_takes_no_core(planned: Planned, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second core trains what may follow `short`, not waiting for `long`, which here ends when that has begun."""
    started: list[str] = []
    begun = threading.Event()

    def run(trial: Trial) -> None:
        started.append(trial.run)
        if trial.run == "after-short":
            begun.set()
        if trial.run == "long":
            assert begun.wait(PATIENCE)

    replace_trials(monkeypatch, run)
    run_study(planned, 2, lambda _: None)
    assert set(started[:2]) == {"long", "short"}  # at the same time
    assert started[2:] == ["after-short", "after-long"]


def test_a_table_that_cannot_be_written_stops_no_trial(planned: Planned, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []
    replace_trials(monkeypatch, lambda trial: started.append(trial.run))
    write, failures = compare.write_comparison, iter([UserError("a run is being replaced")])

    def failing_once(planned: Planned) -> Comparison:
        for error in failures:
            raise error
        return write(planned)

    monkeypatch.setattr(compare, "write_comparison", failing_once)
    said: list[str] = []
    run_study(planned, 1, said.append)
    assert started == ["long", "short", "after-long", "after-short"]
    assert said[0] == "the results so far could not be written: a run is being replaced"


def test_an_unexpected_error_leaves_no_thread_waiting(planned: Planned, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(trial: Trial) -> None:
        if trial.run == "long":
            raise RuntimeError("unexpected")

    replace_trials(monkeypatch, fail)
    with pytest.raises(RuntimeError, match="unexpected"):
        run_study(planned, 2, lambda _: None)
