import errno
import json
import os
import shutil
import subprocess

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from asterism.errors import UserError
from asterism.train import checkpoint
from asterism.train.checkpoint import CheckpointConfig, Facts

FACTS = Facts(steps=9, images=7, batch_size=2, data="abc", recipe={"optim": {"lr": 0.1}})


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
    state = checkpoint.capture(module, optimizer, 3, FACTS)
    checkpoint.write(state, tmp_path, CheckpointConfig())
    train(module, optimizer, 2)
    other, other_optimizer = make()
    loaded = checkpoint.read(tmp_path)
    assert (loaded.step, loaded.facts) == (3, FACTS)
    checkpoint.restore(loaded, other, other_optimizer)
    train(other, other_optimizer, 2)
    for name, value in module.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name


def test_caches_of_version_0_1_are_left_out(tmp_path):
    state = checkpoint.capture(*make(), 1, FACTS)
    state.method["images.lists.floor"] = torch.zeros(3)
    checkpoint.write(state, tmp_path, CheckpointConfig())
    assert checkpoint.read(tmp_path).method.keys() == make()[0].state_dict().keys()


def test_capture_is_a_copy():
    module, optimizer = make()
    state = checkpoint.capture(module, optimizer, 0, FACTS)
    before = state.method["weight"].clone()
    train(module, optimizer, 1)
    assert torch.equal(state.method["weight"], before)


def test_which_checkpoints_are_kept(tmp_path):
    module, optimizer = make()
    for step in range(1, 9):
        state = checkpoint.capture(module, optimizer, step, FACTS)
        checkpoint.write(state, tmp_path, CheckpointConfig(keep_last=2, keep_every=3))
    assert checkpoint.steps(tmp_path) == [3, 6, 7, 8]
    assert (tmp_path / "last").resolve().name == "step-00000008"


def test_half_written_checkpoints_are_ignored_and_removed(tmp_path):
    module, optimizer = make()
    checkpoint.write(checkpoint.capture(module, optimizer, 1, FACTS), tmp_path, CheckpointConfig())
    shutil.copytree(tmp_path / "step-00000001", tmp_path / ".step-00000002.tmp")
    (tmp_path / ".step-00000002.tmp" / "state.json").unlink()
    (tmp_path / "last").unlink()
    assert checkpoint.read(tmp_path).step == 1
    checkpoint.write(checkpoint.capture(module, optimizer, 2, FACTS), tmp_path, CheckpointConfig())
    assert not list(tmp_path.glob(".*.tmp"))


def test_another_shape_or_another_configuration_is_named():
    module, optimizer = make()
    state = checkpoint.capture(module, optimizer, 1, FACTS)
    with pytest.raises(UserError, match=r"weight has shape \[4, 3\].*needs \[5, 3\]"):
        checkpoint.restore(state, *make(width=5))
    other = nn.Sequential(nn.Linear(3, 4))
    with pytest.raises(UserError, match=r"lacks 0\.bias"):
        checkpoint.restore(state, other, torch.optim.AdamW(other.parameters()))


def saved(folder, *steps):
    module, optimizer = make()
    for step in steps:
        checkpoint.write(checkpoint.capture(module, optimizer, step, FACTS), folder, CheckpointConfig(keep_last=9))
    return [folder / f"step-{step:08d}" for step in steps]


def test_checksums_are_those_of_sha256sum(tmp_path):
    (path,) = saved(tmp_path, 1)
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", "checksums.txt"], cwd=path, check=True)


def flip(path, place):
    """Flip one bit; `place` is a share of the file."""
    content = bytearray(path.read_bytes())
    content[int(place * (len(content) - 1))] ^= 4
    path.write_bytes(content)


DAMAGES = {
    "a bit of the weights": lambda path: flip(path / "method.safetensors", 0.9),
    "a bit of a moment": lambda path: flip(path / "optimizer.safetensors", 0.9),
    "a bit of the header": lambda path: flip(path / "method.safetensors", 0.05),
    "a bit of the state": lambda path: flip(path / "state.json", 0.3),
    "a bit of a checksum": lambda path: flip(path / "checksums.txt", 0.5),
    "no checksums": lambda path: (path / "checksums.txt").unlink(),
    "no weights": lambda path: (path / "method.safetensors").unlink(),
    "truncated": lambda path: (path / "optimizer.safetensors").write_bytes(b"short"),
    "not a checkpoint": lambda path: (shutil.rmtree(path), path.write_text("file")),
    "empty": lambda path: (shutil.rmtree(path), path.mkdir()),
    "another step": lambda path: (shutil.rmtree(path), shutil.copytree(path.with_name("step-00000001"), path)),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_skipped_and_named(tmp_path, damage):
    first, second = saved(tmp_path, 1, 2)
    DAMAGES[damage](second)
    path, problems = checkpoint.newest_intact(tmp_path)
    assert path == first
    assert len(problems) == 1
    assert str(second) in problems[0]
    assert checkpoint.read(tmp_path).step == 1
    with pytest.raises(UserError, match="cannot read the checkpoint"):
        checkpoint.read(second)
    DAMAGES["no weights"](first)
    with pytest.raises(UserError, match="there is no intact checkpoint"):
        checkpoint.read(tmp_path)


_VALID = {"step": 1, "steps": 9, "images": 7, "batch_size": 2}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        "{",
        '{"step": 1}',
        "[" * 100_000,
        "\ud800",
        *(json.dumps(_VALID | change) for change in ({"step": "1"}, {"steps": -9}, {"images": 1.5}, {"more": 1})),
    ],
)
def test_a_state_with_wrong_values_is_named(tmp_path, text):
    (path,) = saved(tmp_path, 1)
    (path / "checksums.txt").unlink()
    (path / "state.json").write_text(text, errors="surrogatepass")
    with pytest.raises(UserError, match=r"is damaged: .+no intact checkpoint"):
        checkpoint.read(tmp_path)


def test_a_checkpoint_of_the_first_format_is_read(tmp_path):
    (path,) = saved(tmp_path, 1)
    (path / "checksums.txt").unlink()
    (path / "state.json").write_text(json.dumps({"step": 1, "steps": 9, "images": 7, "batch_size": 2}))
    assert checkpoint.read(tmp_path).facts == Facts(steps=9, images=7, batch_size=2)
    tensors = load_file(path / "method.safetensors")
    save_file(tensors | {"bias": tensors["bias"] * torch.nan}, path / "method.safetensors")
    with pytest.raises(UserError, match="bias is not a number"):
        checkpoint.read(tmp_path)


def test_a_checkpoint_of_a_newer_version_is_refused_and_not_skipped(tmp_path):
    _, second = saved(tmp_path, 1, 2)
    (second / "checksums.txt").unlink()
    content = json.loads((second / "state.json").read_text()) | {"format": 7, "version": "3.0", "new": 1}
    (second / "state.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"newer version of Asterism \(3\.0, format 7\).*Update Asterism"):
        checkpoint.read(tmp_path)


def test_an_error_while_writing_keeps_the_earlier_checkpoints(tmp_path, monkeypatch):
    saved(tmp_path, 1)

    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(checkpoint, "write_tensors", full)
    with pytest.raises(UserError, match=r"of step 2 to .*No space left.*checkpoint of step 1 is intact"):
        saved(tmp_path, 2)
    assert {path.name for path in tmp_path.iterdir()} == {"step-00000001", "last"}


def test_which_tensors_are_not_finite():
    module, optimizer = make()
    module.register_buffer("memory", torch.tensor([torch.inf]))
    train(module, optimizer, 1)
    names = {"weight", "bias"}
    assert checkpoint.not_finite(checkpoint.capture(module, optimizer, 1, FACTS), names) == []
    module.bias.data[0], module.memory[0] = torch.inf, torch.nan
    optimizer.state[module.weight]["exp_avg"][0, 0] = torch.nan
    broken = checkpoint.not_finite(checkpoint.capture(module, optimizer, 1, FACTS), names)
    assert broken == ["bias", "memory", "weight.exp_avg"]
