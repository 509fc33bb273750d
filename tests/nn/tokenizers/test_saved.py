from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from asterism.errors import UserError
from asterism.nn.safetensors_file import METADATA_KEY
from asterism.nn.tokenizers.saved import load_tokenizer, save_tokenizer
from asterism.nn.tokenizers.vqgan import MaskGitVqgan


def _vqgan(vocabulary: int = 6) -> MaskGitVqgan:
    torch.manual_seed(0)
    return MaskGitVqgan(width=32, multipliers=(1, 2), blocks=1, channels=4, vocabulary=vocabulary).eval()


@pytest.mark.parametrize("prefix", ["", "tokenizer.", "model.tokenizer."])
def test_public_weights_load_by_name(tmp_path: Path, prefix: str) -> None:
    vqgan, path = _vqgan(), tmp_path / "vqgan.bin"
    torch.save({prefix + name: tensor for name, tensor in vqgan.state_dict().items()}, path)
    _assert_same(load_tokenizer(path), vqgan)


def test_a_saved_tokenizer_needs_only_its_file(tmp_path: Path) -> None:
    vqgan = _vqgan()
    save_tokenizer(vqgan, tmp_path / "tokenizer.safetensors")
    _assert_same(load_tokenizer(tmp_path), vqgan)
    _assert_same(load_tokenizer(tmp_path / "tokenizer.safetensors"), vqgan)


def _assert_same(tokenizer: object, vqgan: MaskGitVqgan) -> None:
    assert isinstance(tokenizer, MaskGitVqgan)
    images = torch.rand(2, 3, 8, 6, generator=torch.Generator().manual_seed(0))
    codes = tokenizer.encode(images)
    assert codes.shape == (2, 4, 3)
    assert codes.equal(vqgan.encode(images))
    assert tokenizer.decode(codes).equal(vqgan.decode(codes))
    assert not any(p.requires_grad for p in tokenizer.parameters())


def test_errors_explain_why_a_file_does_not_fit(tmp_path: Path) -> None:
    path, state = tmp_path / "x.safetensors", _vqgan().state_dict()
    save_file({**state, "decoder.conv_in.bias": torch.zeros(7)}, path)
    with pytest.raises(UserError, match=r"decoder\.conv_in\.bias is of shape \[64\] there, but of shape \[7\] here"):
        load_tokenizer(path)
    save_file({name: tensor for name, tensor in state.items() if name != "decoder.conv_in.bias"}, path)
    with pytest.raises(UserError, match=r"decoder\.conv_in\.bias is of shape \[64\] there, but absent here"):
        load_tokenizer(path)
    save_file({"head.weight": torch.zeros(2)}, path)
    with pytest.raises(UserError, match="not a known kind of tokenizer"):
        load_tokenizer(path)
    with pytest.raises(UserError, match="asterism pretrain vq"):
        load_tokenizer(tmp_path)
    with pytest.raises(UserError, match=r"no tokenizer found at .*nowhere\.bin; train one"):
        load_tokenizer(tmp_path / "nowhere.bin")


@pytest.mark.parametrize(
    ("tensors", "metadata"),
    [
        ({"encoder.conv_in.weight": torch.zeros(48, 3, 3, 3)}, None),
        ({"quantize.embedding.weight": torch.zeros(6)}, None),
        ({"encoder.down.1.block.0.conv1.weight": torch.zeros(33, 32, 3, 3)}, None),
        ({}, '{"kind": "patches"}'),
        ({}, "no JSON"),
    ],
)
def test_errors_name_files_that_are_not_tokenizers(
    tmp_path: Path, tensors: dict[str, torch.Tensor], metadata: str | None
) -> None:
    path = tmp_path / "x.safetensors"
    save_file(_vqgan().state_dict() | tensors, path, None if metadata is None else {METADATA_KEY: metadata})
    with pytest.raises(
        UserError,
        match=r"x\.safetensors (is a tokenizer of a different shape|does not fit|was damaged|has damaged metadata)",
    ):
        load_tokenizer(path)
