"""Flipped bits in one of our files are noticed; files of others need no checksum."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from asterism.errors import UserError
from asterism.nn.safetensors_file import read_safetensors, write_safetensors

TENSORS = {"b": torch.arange(6.0).reshape(2, 3), "a": torch.tensor(True), "c": torch.ones(2, dtype=torch.bfloat16)}
DESCRIPTION = {"step": 3, "mean": [0.1, 1e-9], "name": "ä"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write_safetensors(tmp_path / "w.safetensors", TENSORS, DESCRIPTION)
    return tmp_path / "w.safetensors"


def test_what_is_written_is_read(file: Path) -> None:
    tensors, metadata = read_safetensors(file)
    assert json.loads(metadata["asterism"]) == DESCRIPTION
    assert tensors.keys() == TENSORS.keys()
    assert all(torch.equal(tensors[name], TENSORS[name]) for name in TENSORS)


def _flip(file: Path, place: int, bit: int) -> None:
    content = bytearray(file.read_bytes())
    content[place] ^= 1 << bit
    file.write_bytes(content)


def test_every_flipped_bit_of_a_tensor_is_noticed(file: Path) -> None:
    size, data = file.stat().st_size, sum(tensor.nbytes for tensor in TENSORS.values())
    for place in range(size - data, size):
        for bit in range(8):
            _flip(file, place, bit)
            with pytest.raises(UserError, match=r"damaged|not a complete"):
                read_safetensors(file)
            _flip(file, place, bit)
    assert read_safetensors(file)[0].keys() == TENSORS.keys()


def test_a_flipped_bit_of_the_header_never_changes_what_a_complete_description_says(file: Path) -> None:
    for place in range(file.stat().st_size - sum(tensor.nbytes for tensor in TENSORS.values())):
        _flip(file, place, place % 8)
        try:
            tensors, metadata = read_safetensors(file)
            description = json.loads(metadata["asterism"])
        except (UserError, KeyError, ValueError):  # the last two: those who read it refuse it
            description = {}
        if description.keys() == DESCRIPTION.keys():
            assert description == DESCRIPTION
            assert all(torch.equal(tensors[name], TENSORS[name]) for name in TENSORS)
        _flip(file, place, place % 8)


def test_a_file_of_others_has_no_checksum(file: Path) -> None:
    save_file(load_file(file), file, {"format": "pt"})
    assert read_safetensors(file)[1] == {"format": "pt"}


def test_nan_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="w is not a number"):
        write_safetensors(tmp_path / "f.safetensors", {"w": torch.tensor([torch.nan])}, {})
    assert not any(tmp_path.iterdir())
