"""Every family with unusual values loads exactly, or says what is missing."""

import json
import warnings
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file

from asterism.errors import UserError
from asterism.nn.weights.description import GuessedWeights, parse_options
from asterism.nn.weights.load import load_encoder
from tests.nn.weights.family_cases import CASES, MEAN, STD, UNUSUAL, difference, network, what_is_missing

pytest.importorskip("transformers")

OTHERS = [name for name in CASES if not name.startswith("transformers:")]  # these have tests of their own


@pytest.mark.parametrize("name", OTHERS)
def test_unusual_values_load_exactly_or_are_asked_for(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    path, reference = case.write(tmp_path)
    encoder = load_encoder(path, **case.options)
    assert difference(encoder, reference, case.shapes) < 1e-5
    assert (encoder.mean, encoder.std, encoder.image_size) == (MEAN, STD, 30)
    missing = what_is_missing(path)
    if case.asks:
        assert case.asks in missing
    else:
        assert set(case.unsure) <= set(missing.split(", "))
        assert bool(missing) == bool(case.unsure)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("image_encoder.blocks.0.attn.rel_pos_h", "w.safetensors is not a checkpoint of a known family"),  # SAM
        ("layer1.0.conv1.weight", r"Encoders are vision transformers and Swins \(docs/weights.md\)"),  # a ResNet
    ],
)
def test_other_networks_are_refused(name: str, message: str, tmp_path: Path) -> None:
    save_file({name: torch.zeros(3, 4)}, tmp_path / "w.safetensors")
    with pytest.raises(UserError, match=message):
        load_encoder(tmp_path / "w.safetensors")


def test_a_file_without_settings_is_not_loaded_silently(tmp_path: Path) -> None:
    """A small ViT for CIFAR: 4 heads, patches of 4, pixels divided by 255 only."""
    plain = network(img_size=32, patch_size=4, num_classes=10)
    torch.save(plain.state_dict(), tmp_path / "cifar.pth")
    with pytest.warns(GuessedWeights) as caught:
        load_encoder(tmp_path / "cifar.pth")
    assert len(caught) == 1
    text = str(caught[0].message)
    assert "Assumed: heads=1, eps=1e-06, activation=gelu, pooling=class, mean=(0.485, 0.456, 0.406)" in text
    assert "give heads=, eps=, activation=, pooling=, mean=, std= to asterism.load" in text
    assert "--weights-option WORD=VALUE" in text
    words = parse_options(["heads=4", "mean=0", "std=1,1,1", "eps=1e-3", "activation=gelu", "pooling=class"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        encoder = load_encoder(tmp_path / "cifar.pth", **words)
    assert (encoder.mean, encoder.std) == ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    assert encoder.backbone.network.blocks[0].attn.num_heads == 4


def test_a_timm_name_brings_what_the_file_does_not_state(tmp_path: Path) -> None:
    name = "vit_tiny_patch16_224.augreg_in21k_ft_in1k"
    plain = timm.create_model("vit_tiny_patch16_224", num_classes=0, depth=1)
    torch.save(plain.state_dict(), tmp_path / "tiny.pth")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        encoder = load_encoder(tmp_path / "tiny.pth", name=name)
    assert (encoder.mean, encoder.std) == ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    assert encoder.backbone.network.blocks[0].attn.num_heads == 3
    # the weights of this model have two kinds of statistics
    plain = timm.create_model("vit_small_patch16_224", num_classes=5, depth=1)
    torch.save(plain.state_dict(), tmp_path / "small.pth")
    with pytest.warns(GuessedWeights, match=r"Assumed: mean=\(0.5, 0.5, 0.5\), std=\(0.5, 0.5, 0.5\)\. If"):
        load_encoder(tmp_path / "small.pth", name="vit_small_patch16_224")
    with pytest.raises(UserError, match=r"unknown weights of timm 'vit_small_patch16_224.dinno'; did you mean"):
        load_encoder(tmp_path / "small.pth", name="vit_small_patch16_224.dinno")


def test_published_sizes_need_no_warning(tmp_path: Path) -> None:
    """The conventions of DINO's files are certain for the sizes that it published."""
    with torch.device("meta"):
        plain = timm.create_model("vit_small_patch16_224", num_classes=0)
    tensors = {name: torch.zeros(tensor.shape, dtype=torch.float16) for name, tensor in plain.state_dict().items()}
    torch.save({"teacher": {f"backbone.{n}": t for n, t in tensors.items()}}, tmp_path / "dino.pth")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        encoder = load_encoder(tmp_path / "dino.pth")
    assert encoder.backbone.network.blocks[0].attn.num_heads == 6


def test_options_take_precedence_over_the_file(tmp_path: Path) -> None:
    path, _ = CASES["Asterism run or export"].write(tmp_path)
    encoder = load_encoder(
        path, heads=2, eps=1e-4, activation="relu", mean=0.5, std=0.25, image_size=24, pooling="mean"
    )
    block = encoder.backbone.network.blocks[0]
    assert (block.attn.num_heads, block.norm1.eps, type(block.mlp.act)) == (2, 1e-4, torch.nn.ReLU)
    assert (encoder.mean, encoder.std, encoder.image_size) == ((0.5,) * 3, (0.25,) * 3, 24)
    features = encoder.encode(torch.rand(1, 3, 24, 24))
    torch.testing.assert_close(features.cls, features.patches.mean(dim=1))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"heads": 0}, "heads = 0: must be at least 1"),
        ({"heads": 5}, "heads = 5 does not divide 64"),
        ({"mean": [0.5, 0.5]}, "mean.2 is required"),
        ({"std": 0}, "std.0 = 0: must be above 0"),
        ({"pooling": "max"}, "pooling = 'max': must be 'class'"),
        ({"pooling": "attention"}, "has no attention pooling here; choose pooling=class"),
        ({"activation": "gelo"}, "activation = 'gelo': must be 'gelu'"),
        ({"which": "pupil"}, "which = 'pupil': must be 'teacher' or"),
        ({"image_size": 31}, "image_size = 31 is not a multiple of the patch size 6"),
    ],
)
def test_impossible_options(tmp_path: Path, words: dict[str, object], message: str) -> None:
    path, _ = CASES["DINO: training checkpoint"].write(tmp_path)
    with pytest.raises(UserError, match=message):
        load_encoder(path, **(UNUSUAL | words))


def test_options_as_texts() -> None:
    assert parse_options(["heads=4", "mean=[0.1, 0.2,0.3]", "name=vit_x", "eps=1e-5"]) == {
        "heads": 4,
        "mean": [0.1, 0.2, 0.3],
        "name": "vit_x",
        "eps": 1e-5,
    }
    for text, message in (
        ("heads", "write WORD=VALUE"),
        ("head=4", "unknown setting 'head'; did you mean 'heads'"),
        ("heads=four", "heads = 'four': must be a whole number"),
        ("mean=a,b,c", "mean = 'a,b,c': could not convert"),
    ):
        with pytest.raises(UserError, match=message):
            parse_options([text])


def test_broken_files_are_named_by_key(tmp_path: Path) -> None:
    tensors = network().state_dict()

    def fails(changes: dict[str, torch.Tensor | None], message: str) -> None:
        kept = {n: t for n, t in (tensors | changes).items() if t is not None}
        save_file({n: t.contiguous() for n, t in kept.items()}, tmp_path / "w.safetensors")
        with pytest.raises(UserError, match=message):
            load_encoder(tmp_path / "w.safetensors", heads=4)

    fails({"blocks.1.norm2.bias": None}, r"lacks the tensor 'blocks\.1\.norm2\.bias' of its network")
    fails(
        {"blocks.1.attn.proj.weight": torch.zeros(64, 63)},
        r"blocks\.1\.attn\.proj\.weight has the shape \[64, 63\] in .* and \[64, 64\] in its network",
    )
    fails({"blocks.1.extra": torch.zeros(2)}, r"has a tensor 'blocks\.1\.extra' that its network does not have")
    fails({"blocks.7.norm1.weight": torch.zeros(64)}, r"has 3 blocks, but lacks the tensors of 'blocks\.2'")
    fails({"patch_embed.proj.weight": torch.zeros(64, 108)}, r"patch embedding has the shape \[64, 108\]; expected")
    fails({"pos_embed": torch.zeros(1, 28, 64)}, "28 positions does not fit a square grid")
    fails({"pos_embed": torch.zeros(1, 26, 63)}, r"pos_embed has the shape \[1, 26, 63\] in .*; expected \[1, posi")
    fails({"blocks.0.mlp.fc1.weight": None}, r"lacks the tensor 'blocks\.0\.mlp\.fc1\.weight'")


def test_a_class_token_without_a_position_is_ambiguous(tmp_path: Path) -> None:
    plain = network(no_embed_class=True)
    torch.save(plain.state_dict(), tmp_path / "w.pth")
    with pytest.raises(UserError, match="give family=flsl or family=timm"):
        load_encoder(tmp_path / "w.pth", heads=4)
    assert load_encoder(tmp_path / "w.pth", heads=4, family="timm").backbone.has_cls
    assert not load_encoder(tmp_path / "w.pth", heads=4, family="flsl").backbone.has_cls


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_args": {"num_heads": "4"}}, "num_heads = '4'; expected a positive number"),
        ({"pretrained_cfg": {"mean": [0.5]}}, r"mean = \[0.5\]; expected three numbers"),
        ({"pretrained_cfg": {"std": [0, 1, 1]}}, r"std = \[0, 1, 1\]; expected three numbers"),
        ({"pretrained_cfg": ["a"]}, "do not fit a checkpoint of timm"),
        ({"architecture": 7}, "do not fit a checkpoint of timm|timm has no model"),
        ({"architecture": "resnet18"}, "'resnet18' is neither"),
        ({"architecture": "hf-hub:someone/model"}, "timm has no model"),
    ],
)
def test_settings_of_timm_that_cannot_be_right(tmp_path: Path, change: dict[str, object], message: str) -> None:
    path, _ = CASES["timm folder"].write(tmp_path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(UserError, match=message):
        load_encoder(path)
