"""A weights file from anywhere cannot make the loader open an address, run code or reserve memory it does not fill."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file

from asterism.errors import UserError
from asterism.nn.backbone import BackboneConfig, build_backbone
from asterism.nn.encoder import Encoder
from asterism.nn.safetensors_file import METADATA_KEY
from asterism.nn.weights import metadata as module
from asterism.nn.weights.load import load_encoder


def description() -> dict[str, Any]:
    arguments = {"img_size": 32, "patch_size": 16, "embed_dim": 32, "depth": 1, "num_heads": 1}
    fixed = {"num_classes": 0, "global_pool": "", "dynamic_img_size": True}
    return {
        "architecture": {"name": "vit_small_patch16_224", "arguments": arguments | fixed},
        "mean": [0.5, 0.5, 0.5],
        "std": [0.2, 0.2, 0.2],
        "image_size": 32,
        "step": 3,
    }


@pytest.fixture(scope="module")
def tensors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    config = BackboneConfig(dim=32, depth=1, heads=1, image_size=32, patch_size=16)
    return load_file(Encoder(build_backbone(config)).save(tmp_path_factory.mktemp("weights")))


def written(folder: Path, tensors: dict[str, torch.Tensor], values: object) -> Path:
    path = folder / "encoder.safetensors"
    save_file(tensors, path, {METADATA_KEY: values if isinstance(values, str) else json.dumps(values)})
    return path


def changed(place: str, value: object) -> dict[str, Any]:
    values = description()
    *parents, last = place.split(".")
    node = values
    for parent in parents:
        node = node[parent]
    node[last] = value
    return values


def test_an_honest_file_is_loaded(tmp_path: Path, tensors: dict[str, torch.Tensor]) -> None:
    encoder = load_encoder(written(tmp_path, tensors, description()))
    assert (encoder.image_size, encoder.step, encoder.mean) == (32, 3, (0.5, 0.5, 0.5))


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("architecture.arguments.pretrained", True),
        ("architecture.arguments.pretrained_cfg_overlay", {"url": "http://127.0.0.1:9/weights"}),
        ("architecture.arguments.pretrained_cfg", {"file": "/etc/passwd"}),
        ("architecture.arguments.checkpoint_path", "/etc/passwd"),
        ("architecture.arguments.cache_dir", "/tmp"),
        ("architecture.arguments.scriptable", True),
        ("architecture.arguments.num_classes", 10**9),
        ("architecture.arguments.embed_dim", "32"),
        ("architecture.arguments.embed_dim", 10**30),
        ("architecture.arguments.depth", 10**6),
        ("architecture.arguments.depth", 0),
        ("architecture.arguments", []),
        ("architecture.name", ["vit_small_patch16_224"]),
        ("architecture.name", "hf-hub:someone/vit"),
        ("architecture.name", "resnet50"),
        ("architecture.resampling", "other"),
        ("architecture.init", "other"),
        ("architecture.layer_norm_eps", -1),
        ("architecture.extra", 1),
        ("mean", [0, 0]),
        ("mean", [0, 0, float("nan")]),
        ("std", [1, 1, 0]),
        ("std", [1, 1, float("inf")]),
        ("std", "abc"),
        ("image_size", 0),
        ("image_size", 10**9),
        ("image_size", None),
        ("step", -1),
        ("step", "three"),
    ],
)
def test_metadata_outside_the_allowed_is_refused(
    tmp_path: Path, tensors: dict[str, torch.Tensor], place: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_network(*arguments: object, **settings: object) -> None:
        raise AssertionError("timm must not be asked to build this")

    if place != "architecture.arguments.embed_dim":
        monkeypatch.setattr(timm, "create_model", no_network)
    if value == "32":
        value = "thirty-two"
    with pytest.raises(UserError) as error:
        load_encoder(written(tmp_path, tensors, changed(place, value)))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("values", ["", "no JSON", "[]", "null", "[" * 100_000, '{"a": ' * 5000, "{}"])
def test_damaged_metadata_is_refused(tmp_path: Path, tensors: dict[str, torch.Tensor], values: str) -> None:
    with pytest.raises(UserError, match="metadata"):
        load_encoder(written(tmp_path, tensors, values))


def test_a_network_larger_than_its_file_is_refused_before_it_is_built(
    tmp_path: Path, tensors: dict[str, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SLACK", 0)
    values = changed("architecture.arguments.embed_dim", 16384)
    with pytest.raises(UserError, match=r"describes a network of [\d,]+ numbers, but holds only"):
        load_encoder(written(tmp_path, tensors, values))


@pytest.mark.parametrize("length", [0, 1, 7, 10**6, 2**40, 2**63, 2**64 - 1])
def test_headers_are_bounded(tmp_path: Path, length: int) -> None:
    path = tmp_path / "w.safetensors"
    path.write_bytes(struct.pack("<Q", length) + b"{}")
    with pytest.raises(UserError, match=r"w\.safetensors"):
        load_encoder(path)


def test_a_long_header_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", 64 << 20))
        file.truncate((64 << 20) + 100)
    with pytest.raises(UserError, match="has a header of 67,108,864 bytes, more than"):
        load_encoder(path)
