import importlib.util
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from asterism.errors import UserError
from asterism.train import tensorboard
from asterism.train.monitor import LoggingConfig
from asterism.train.tensorboard import TensorBoard
from tests.train.tiny import pretrain, tiny_recipe

ON = LoggingConfig(tensorboard=True)


class Broken:
    """A writer whose disk fails at some calls."""

    def __init__(self, *fails_at: int) -> None:
        self.fails_at, self.calls = fails_at, 0

    def add_scalar(self, *_: Any) -> None:
        self.calls += 1
        if self.calls in self.fails_at:
            raise OSError("no space\nand a page of details")

    def close(self) -> None:
        self.calls += 1


@pytest.mark.parametrize(
    ("fails_at", "calls", "warnings"),
    [
        ((2, 3), 7, ["TensorBoard failed (OSError: no space). Training continues; metrics.jsonl has all numbers."]),
        ((1, 2, 3), 3, ["TensorBoard failed (OSError", "TensorBoard failed 3 times in a row"]),
    ],
    ids=["recovers", "is given up"],
)
def test_failures(
    fails_at: tuple[int, ...], calls: int, warnings: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, said = Broken(*fails_at), list[str]()
    monkeypatch.setattr(tensorboard, "_writer", lambda run, step: writer)
    board = TensorBoard(ON, tmp_path, 0, said.append)
    for step in range(6):
        board.numbers(step, {"loss": 1.0})
    board.close()
    assert writer.calls == calls
    assert [text.startswith(start) for text, start in zip(said, warnings, strict=True)] == [True] * len(warnings)


def test_training_goes_on_if_it_cannot_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(run: Path, step: int) -> None:
        raise OSError("no space")

    monkeypatch.setattr(tensorboard, "_writer", fails)
    recipe = tiny_recipe(monitor={"tensorboard": True}, trainer={"steps": 1})
    assert len(pretrain(recipe, tmp_path / "run").metrics()) == 1
    printed = " ".join(capsys.readouterr().out.split())
    assert "Warning: TensorBoard could not be started (OSError: no space)" in printed


def test_it_gets_numbers_and_no_texts(tmp_path: Path) -> None:
    board = TensorBoard(ON, tmp_path, 0, pytest.fail)
    board.numbers(1, {"loss": 1.5, "warning": "text is not a scalar"})
    board.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert events.Tags()["scalars"] == ["loss"]
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(1, 1.5)]


def test_a_missing_package_is_named_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "tensorboard" else found(name))
    with pytest.raises(UserError, match=r"needs the package 'tensorboard': pip install 'asterism\[tensorboard\]'"):
        pretrain(tiny_recipe(monitor={"tensorboard": True}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_trackers_of_old_recipes_are_ignored() -> None:
    assert LoggingConfig.parse({"wandb": None, "mlflow": None}) == LoggingConfig()
    with pytest.warns(UserWarning, match=r"monitor\.wandb is ignored: see docs/training.md"):
        assert LoggingConfig.parse({"wandb": {"project": "birds"}, "log_every": 3}).log_every == 3
