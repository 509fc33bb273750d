import shutil

import pytest
import torch
from torch import nn

from asterism.errors import UserError
from asterism.train import checkpoint
from asterism.train.checkpoint import CheckpointConfig


def make(width=4):
    module = nn.Linear(3, width)
    module.register_buffer("count", torch.zeros((), dtype=torch.int64))
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.1)
    return module, optimizer


def train(module, optimizer, steps):
    for i in range(steps):
        optimizer.zero_grad()
        (module(torch.full((2, 3), float(i + 1))) ** 2).sum().backward()
        optimizer.step()
        module.count += 1


def test_restored_training_continues_bit_identically(tmp_path):
    torch.manual_seed(0)
    module, optimizer = make()
    train(module, optimizer, 3)
    state = checkpoint.capture(module, optimizer, 3, {"images": 7})
    checkpoint.write(state, tmp_path, CheckpointConfig())
    train(module, optimizer, 2)
    other, other_optimizer = make()
    loaded = checkpoint.read(tmp_path)
    assert (loaded.step, loaded.facts) == (3, {"images": 7})
    checkpoint.restore(loaded, other, other_optimizer)
    train(other, other_optimizer, 2)
    for name, value in module.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name


def test_capture_is_a_copy():
    module, optimizer = make()
    state = checkpoint.capture(module, optimizer, 0, {})
    before = state.method["weight"].clone()
    train(module, optimizer, 1)
    assert torch.equal(state.method["weight"], before)


def test_which_checkpoints_are_kept(tmp_path):
    module, optimizer = make()
    for step in range(1, 9):
        state = checkpoint.capture(module, optimizer, step, {})
        checkpoint.write(state, tmp_path, CheckpointConfig(keep_last=2, keep_every=3))
    assert checkpoint.steps(tmp_path) == [3, 6, 7, 8]
    assert (tmp_path / "last").resolve().name == "step-00000008"


def test_half_written_checkpoints_are_ignored_and_removed(tmp_path):
    module, optimizer = make()
    checkpoint.write(checkpoint.capture(module, optimizer, 1, {}), tmp_path, CheckpointConfig())
    shutil.copytree(tmp_path / "step-00000001", tmp_path / ".step-00000002.tmp")
    (tmp_path / ".step-00000002.tmp" / "state.json").unlink()
    (tmp_path / "last").unlink()
    assert checkpoint.read(tmp_path).step == 1
    checkpoint.write(checkpoint.capture(module, optimizer, 2, {}), tmp_path, CheckpointConfig())
    assert not list(tmp_path.glob(".*.tmp"))


def test_another_shape_or_another_configuration_is_named():
    module, optimizer = make()
    state = checkpoint.capture(module, optimizer, 1, {})
    with pytest.raises(UserError, match=r"weight has shape \[4, 3\].*needs \[5, 3\]"):
        checkpoint.restore(state, *make(width=5))
    other = nn.Sequential(nn.Linear(3, 4))
    with pytest.raises(UserError, match=r"lacks 0\.bias"):
        checkpoint.restore(state, other, torch.optim.AdamW(other.parameters()))


def test_no_checkpoint_and_a_broken_one(tmp_path):
    with pytest.raises(UserError, match="no checkpoint in"):
        checkpoint.read(tmp_path)
    module, optimizer = make()
    path = checkpoint.write(checkpoint.capture(module, optimizer, 1, {}), tmp_path, CheckpointConfig())
    (path / "method.safetensors").write_bytes(b"garbage")
    with pytest.raises(UserError, match="cannot read the checkpoint"):
        checkpoint.read(tmp_path)
