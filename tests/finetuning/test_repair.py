"""What a kill or damage leaves of a fine-tuned run: resuming makes its model complete again, or says what is lost."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from asterism.finetuning.model import load_model
from asterism.finetuning.run import FinetunedRun
from asterism.nn.safetensors_file import METADATA_KEY, read_safetensors, write_safetensors
from tests.finetuning.tiny import coloured_folder, finetune, resume, tiny

_STEPS = 4


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return coloured_folder(tmp_path_factory.mktemp("data") / "photos", images=4)


def trained(data: Path, out: Path, *changes: str) -> FinetunedRun:
    usual = (f"trainer.steps={_STEPS}", "checkpoint.every_steps=1", "optim.lr=0.1", "optim.warmup_steps=0")
    return finetune(tiny(data, *usual, *changes), out)


@pytest.fixture(scope="module")
def last(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Path:
    """A run that keeps its last weights."""
    recipe = tiny(data, f"trainer.steps={_STEPS}", "checkpoint.every_steps=1", "optim.lr=0.1", "optim.warmup_steps=0")
    return finetune(recipe.model_copy(update={"validation": None}), tmp_path_factory.mktemp("last") / "run").path


@pytest.fixture(scope="module")
def best(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Path:
    """A run that keeps its best weights."""
    return trained(data, tmp_path_factory.mktemp("best") / "run").path


def model_of(run: Path) -> dict[str, bytes]:
    return {name: (run / name).read_bytes() for name in ("model.safetensors", "encoder.safetensors")}


def _as_of_an_earlier_step(run: Path) -> None:
    tensors, metadata = read_safetensors(run / "model.safetensors")
    description = json.loads(metadata[METADATA_KEY])
    changed = {name: tensor + 1 if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
    write_safetensors(run / "model.safetensors", changed, {**description, "step": _STEPS - 1})


def _flip_a_bit(run: Path) -> None:
    content = bytearray((run / "model.safetensors").read_bytes())
    content[-5] ^= 1
    (run / "model.safetensors").write_bytes(content)


_DAMAGES: dict[str, Callable[[Path], object]] = {
    "of an earlier step": _as_of_an_earlier_step,  # a kill between the last checkpoint and the model
    "missing": lambda run: (run / "model.safetensors").unlink(),
    "damaged": _flip_a_bit,
    "both missing": lambda run: [(run / name).unlink() for name in model_of(run)],
}


@pytest.mark.parametrize("damage", _DAMAGES)
def test_the_model_of_a_finished_run_is_written_again(last: Path, damage: str, tmp_path: Path, capsys: Any) -> None:
    run = Path(shutil.copytree(last, tmp_path / "run", symlinks=True))
    _DAMAGES[damage](run)
    resume(run)
    assert model_of(run) == model_of(last)
    printed = capsys.readouterr().out
    assert f"from the checkpoint of step {_STEPS}" in printed
    assert "is finished" in printed
    resume(run)
    assert "again" not in capsys.readouterr().out


def test_an_encoder_that_is_not_that_of_the_model_is_written_again(best: Path, tmp_path: Path) -> None:
    """A kill between the two files leaves them of different steps."""
    run = Path(shutil.copytree(best, tmp_path / "run", symlinks=True))
    (run / "encoder.safetensors").unlink()
    resume(run)
    assert model_of(run) == model_of(best)


def test_lost_best_weights_are_named_and_the_last_are_measured(best: Path, tmp_path: Path, capsys: Any) -> None:
    run = Path(shutil.copytree(best, tmp_path / "run", symlinks=True))
    kept = load_model(best).step
    (run / "model.safetensors").unlink()
    resume(run)
    printed = " ".join(capsys.readouterr().out.split())
    assert f"is not the model of step {kept}, which was the best so far" in printed
    assert load_model(run).step == _STEPS
    state = load_file(run / "checkpoints" / "last" / "method.safetensors")
    written, _ = read_safetensors(run / "model.safetensors")
    for name, tensor in written.items():
        assert torch.equal(tensor, state[f"average.network.{name}"]), name


def test_an_interrupted_run_that_lost_its_model_still_ends_with_one(best: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(best, tmp_path / "run", symlinks=True))
    shutil.rmtree(run / "checkpoints" / f"step-{_STEPS:08d}")
    (run / "model.safetensors").unlink()
    resume(run)
    assert load_model(run).step == _STEPS
