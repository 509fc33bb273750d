import argparse
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from asterism.errors import UserError
from asterism.nn.weights.checkpoint_file import read_checkpoint

WEIGHTS = {"a.weight": torch.ones(2)}


def written(path: Path, values: Any) -> Path:
    torch.save(values, path)
    return path


@pytest.mark.parametrize(
    "values",
    [
        WEIGHTS,
        {"model": WEIGHTS, "epoch": 3},
        {"state_dict": WEIGHTS},
        {"state_dict": {"module.a.weight": torch.ones(2), "module.b": 3}},
        {"teacher": {"backbone.a.weight": torch.ones(2), "head.weight": torch.zeros(1)}},
        {"teacher": {"module.backbone.a.weight": torch.ones(2), "module.head.weight": torch.zeros(1)}, "epoch": 1},
        {"model": WEIGHTS, "args": argparse.Namespace(lr=1e-3, data="x")},
    ],
)
def test_wrappers_are_removed(tmp_path: Path, values: Any) -> None:
    tensors = read_checkpoint(written(tmp_path / "w.pth", values)).tensors
    assert list(tensors) == ["a.weight"]
    assert torch.equal(tensors["a.weight"], torch.ones(2))


def test_student_or_teacher(tmp_path: Path) -> None:
    both = written(tmp_path / "w.pth", {"student": {"a": torch.zeros(1)}, "teacher": {"a": torch.ones(1)}})
    assert read_checkpoint(both).tensors["a"] == 1
    assert read_checkpoint(both, "student").tensors["a"] == 0
    with pytest.raises(UserError, match="contains a single network"):
        read_checkpoint(written(tmp_path / "one.pth", WEIGHTS), "student")
    with pytest.raises(UserError, match="has no teacher; it contains: student"):
        read_checkpoint(written(tmp_path / "half.pth", {"student": WEIGHTS}))


class Attack:
    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("code ran",)


def test_files_that_could_run_code_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path / "w.pth", {"model": WEIGHTS, "extra": Attack()})
    with pytest.raises(UserError, match=r"could run code; .* safetensors"):
        read_checkpoint(path)
    assert "code ran" not in capsys.readouterr().out


def test_errors_name_broken_files(tmp_path: Path) -> None:
    whole = written(tmp_path / "w.pth", {"a": torch.ones(1000)}).read_bytes()
    (tmp_path / "half.pth").write_bytes(whole[: len(whole) // 2])
    save_file(WEIGHTS, tmp_path / "w.safetensors")
    (tmp_path / "half.safetensors").write_bytes((tmp_path / "w.safetensors").read_bytes()[:-4])
    (tmp_path / "empty.pth").touch()
    (tmp_path / "text.pth").write_text("hello")
    for name in ("half.pth", "half.safetensors", "empty.pth", "text.pth"):
        with pytest.raises(UserError, match=name):
            read_checkpoint(tmp_path / name)


def test_errors_name_files_without_weights(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file or folder"):
        read_checkpoint(tmp_path / "absent.pth")
    with pytest.raises(UserError, match=r"contains no weights: expected one of encoder\.safetensors"):
        read_checkpoint(tmp_path)
    (tmp_path / "w.npz").touch()
    with pytest.raises(UserError, match=r"cannot read weights from .*w\.npz: expected a file \.safetensors, \.pth"):
        read_checkpoint(tmp_path / "w.npz")
    with pytest.raises(UserError, match="contains a list, expected a state dict"):
        read_checkpoint(written(tmp_path / "list.pth", [1, 2]))
    with pytest.raises(UserError, match="contains no tensors"):
        read_checkpoint(written(tmp_path / "numbers.pth", {"epoch": 2}))


def test_settings_next_to_the_weights_are_read(tmp_path: Path) -> None:
    save_file(WEIGHTS, tmp_path / "model.safetensors", {"format": "pt"})
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 4}))
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"image_mean": [0.5, 0.5, 0.5]}))
    file = read_checkpoint(tmp_path)
    assert file.config == {"hidden_size": 4}
    assert file.preprocessor == {"image_mean": [0.5, 0.5, 0.5]}
    assert file.metadata == {"format": "pt"}
    (tmp_path / "model_config.json").write_text(json.dumps({"hidden_size": 5}))
    assert read_checkpoint(tmp_path / "model.safetensors").config == {"hidden_size": 5}
    (tmp_path / "model_config.json").write_text("{")
    with pytest.raises(UserError, match=r"model_config\.json: it is not valid JSON"):
        read_checkpoint(tmp_path / "model.safetensors")
