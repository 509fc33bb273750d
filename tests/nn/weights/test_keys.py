"""Tensors of a file that are named in another way than any known family's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from asterism.errors import UserError
from asterism.nn.weights.description import parse_options
from asterism.nn.weights.load import load_encoder
from tests.nn.weights.test_load import network, pixels, saved


@torch.no_grad()
def test_keys_rename_the_tensors_of_a_file_with_other_names(tmp_path: Path) -> None:
    plain = network(num_classes=0)
    names = {name: name.replace("blocks.", "trunk.layer_").replace("norm.", "ln.") for name in plain.state_dict()}
    file = saved(tmp_path / "w.safetensors", {names[name]: tensor for name, tensor in plain.state_dict().items()})
    keys = {r"trunk\.layer_(\d+)": r"blocks.\1", r"^ln\.": "norm."}
    with pytest.raises(UserError, match=r"not a checkpoint of a known family.*keys"):
        load_encoder(file)
    loaded = load_encoder(file, keys=keys, heads=1)
    torch.testing.assert_close(loaded.backbone(pixels()).cls, plain.forward_features(pixels())[:, 0])
    written = [f"keys={pattern}={replacement}" for pattern, replacement in keys.items()]
    assert parse_options(written) == {"keys": keys}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"layers": "blocks"}, "no tensor of .* matches 'layers'; its names are blocks.0"),
        ({"[": "blocks"}, "not a regular expression"),
        ({"blocks": r"\1"}, "cannot replace 'blocks'"),
        ({r"\d+": ""}, "the same name"),
    ],
)
def test_keys_that_cannot_be_used(tmp_path: Path, keys: dict[str, str], message: str) -> None:
    file = saved(tmp_path / "w.safetensors", network().state_dict())
    with pytest.raises(UserError, match=message):
        load_encoder(file, keys=keys)
    with pytest.raises(UserError, match="the name of a timm model"):
        load_encoder("vit_tiny_patch16_224", keys={"a": "b"})


def test_a_pattern_may_contain_equals_signs() -> None:
    assert parse_options([r"keys=a(?=\.b)=c"]) == {"keys": {r"a(?=\.b)": "c"}}
    with pytest.raises(UserError, match="PATTERN=REPLACEMENT"):
        parse_options(["keys=blocks"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 5}, "heads = 5 does not divide 64, the width of the network"),
        ({"name": "swin_tiny_patch4_window7_224"}, "does not have the tensors of swin_tiny.*give another name="),
    ],
)
def test_options_that_do_not_fit_are_named_as_they_were_given(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    file = saved(tmp_path / "w.safetensors", network(num_classes=0).state_dict())
    with pytest.raises(UserError, match=message):
        load_encoder(file, **options)


def test_a_name_does_not_promise_the_heads_of_another_width(tmp_path: Path) -> None:
    file = saved(tmp_path / "w.safetensors", network(num_classes=0, embed_dim=48).state_dict())
    with pytest.raises(UserError, match=r"width 48, which vit_tiny_patch16_224 is not, and does not state.*heads="):
        load_encoder(file, name="vit_tiny_patch16_224")
