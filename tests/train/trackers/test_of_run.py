import importlib.util
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from asterism.errors import UserError
from asterism.train.trackers import of_run
from asterism.train.trackers.base import Tracker
from asterism.train.trackers.of_run import Trackers, TrackersConfig
from tests.train.tiny import pretrain, tiny_recipe


class Broken(Tracker):
    """A tracker whose server is away at some calls."""

    def __init__(self, *fails_at: int) -> None:
        self.fails_at, self.calls = fails_at, 0

    def _call(self) -> None:
        self.calls += 1
        if self.calls in self.fails_at:
            raise ConnectionError("no route to host\nand a page of details")

    def numbers(self, step, values):
        self._call()

    def close(self, ending):
        self._call()


def _with(tracker: Tracker, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Trackers, list[str]]:
    monkeypatch.setattr(of_run, "TensorBoard", lambda run, step: tracker)
    warnings: list[str] = []
    return Trackers(TrackersConfig(tensorboard=True), folder, 0, warnings.append), warnings


def test_a_failure_is_reported_once_and_the_tracker_recovers(tmp_path, monkeypatch):
    tracker = Broken(2, 3)
    trackers, warnings = _with(tracker, tmp_path, monkeypatch)
    for step in range(6):
        trackers.numbers(step, {"loss": 1.0})
    trackers.close("finished")
    assert tracker.calls == 7
    assert len(warnings) == 1
    assert "TensorBoard failed (ConnectionError: no route to host). Training continues" in warnings[0]


def test_a_tracker_that_keeps_failing_is_given_up(tmp_path, monkeypatch):
    tracker = Broken(1, 2, 3)
    trackers, warnings = _with(tracker, tmp_path, monkeypatch)
    for step in range(6):
        trackers.numbers(step, {"loss": 1.0})
    assert tracker.calls == 3
    assert "failed 3 times in a row" in warnings[-1]


def test_training_goes_on_without_a_tracker_that_cannot_start(tmp_path, monkeypatch, capsys):
    def unreachable(run, step):
        raise ConnectionError("no route to host")

    monkeypatch.setattr(of_run, "TensorBoard", unreachable)
    recipe = tiny_recipe(monitor={"tensorboard": True}, trainer={"steps": 1})
    run = pretrain(recipe, tmp_path / "run")
    assert len(run.metrics()) == 1
    printed = " ".join(capsys.readouterr().out.split())
    assert "Warning: TensorBoard could not be started (ConnectionError: no route to host)" in printed


def test_tensorboard_gets_numbers(tmp_path):
    trackers = Trackers(TrackersConfig(tensorboard=True), tmp_path, 0, pytest.fail)
    trackers.numbers(1, {"loss": 1.5, "warning": "text is not a scalar"})
    trackers.close("finished")
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(1, 1.5)]


@pytest.mark.parametrize("package", ["wandb", "mlflow", "tensorboard"])
def test_a_missing_package_is_named_before_anything_is_written(tmp_path, monkeypatch, package):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else found(name))
    with pytest.raises(UserError, match=rf"needs the package '{package}': pip install 'asterism\[{package}\]'"):
        pretrain(tiny_recipe(monitor={package: True}), tmp_path / "run")
    assert not (tmp_path / "run").exists()
