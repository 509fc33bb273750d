"""Runs that continue from other people's networks: the network, its heads and its pixels come from the weights."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import asterism
from asterism.errors import UserError
from asterism.nn.weights.load import load_encoder
from tests.nn.weights.family_cases import CASES, MEAN, STD, UNUSUAL, pixels

pytest.importorskip("transformers")

SCENES = "scenes:size=24,count=8"
SMALL = [
    *["backbone.image_size=24", "trainer.steps=2", "trainer.batch_size=4", "trainer.accelerator=cpu"],
    *["trainer.devices=1", "data.workers=0", "optim.warmup_share=0.5"],
]
HEADS = ["method.out_dim=8", "method.hidden_dim=8", "method.bottleneck_dim=4", "method.local_views=1"]


def adapt(init: Any, out: Path, *changes: str, recipe: str = "adapt") -> asterism.Run:
    overrides = [*SMALL, *(HEADS if recipe == "adapt" else []), *changes]
    length = [] if recipe == "adapt" else ["backbone.name=init"]
    return asterism.pretrain(recipe=recipe, data=SCENES, out=out, init=init, overrides=[*overrides, *length])


@pytest.mark.parametrize("family", ["DINOv2, registers", "transformers: DINOv3 ViT gated", "transformers: ViT"])
def test_adapting_a_network_of_another_family(family: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = CASES[family]
    path, _ = case.write(tmp_path)
    source = load_encoder(path, **case.options)
    run = adapt(
        asterism.weights(path, **case.options), tmp_path / "run", "trainer.steps=1", "optim.lr=0", "optim.min_lr=0"
    )
    encoder = run.encoder()
    assert (encoder.mean, encoder.std, encoder.image_size) == (MEAN, STD, 24)
    with torch.no_grad():  # nothing was learned at a rate of 0: the features are still those of the source
        ours, theirs = encoder(pixels(4, 4)), source(pixels(4, 4))
    if "pos_embed" not in source.backbone.network.state_dict():  # others resample their table twice
        torch.testing.assert_close(ours.cls, theirs.cls, atol=1e-5, rtol=1e-5)
    assert encoder.backbone.network.blocks[0].attn.num_heads == 4
    assert {m.eps for m in encoder.modules() if isinstance(m, torch.nn.LayerNorm)} == {1e-3}
    assert "Started from" in capsys.readouterr().out


def test_an_adapted_run_learns_and_resumes(tmp_path: Path) -> None:
    case = CASES["DINOv3"]
    path, _ = case.write(tmp_path)
    before = load_encoder(path, **case.options).backbone.network.state_dict()
    run = adapt(asterism.weights(path, **case.options), tmp_path / "run")
    after = load_encoder(run.path).backbone.network.state_dict()
    assert not torch.equal(before["blocks.0.attn.qkv.weight"], after["blocks.0.attn.qkv.weight"])
    assert asterism.pretrain(resume=run.path).path == run.path  # finished; its recipe still describes the network


@pytest.mark.parametrize("method", ["mae", "stellar"])
def test_other_methods_continue_from_rotary_positions(method: str, tmp_path: Path) -> None:
    """They leave patches out, or add registers."""
    case = CASES["timm file, DINOv3"]
    path, _ = case.write(tmp_path)
    changes = {"stellar": ["method.tokens=4", "method.reconstruction.decoder_dim=32", "method.local_views=0"]}
    run = adapt(asterism.weights(path, **case.options), tmp_path / "run", *changes.get(method, []), recipe=method)
    assert run.encoder().backbone.architecture.name == "vit_small_patch16_dinov3"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["backbone.dim=32"], "backbone.dim = 32, but backbone.name = init takes it from the weights; leave it out"),
        (["backbone.image_size=25"], "not a multiple of the patch size 6"),
    ],
)
def test_settings_that_contradict_the_weights(tmp_path: Path, changes: list[str], message: str) -> None:
    path, _ = CASES["DINOv2"].write(tmp_path)
    with pytest.raises(UserError, match=message):
        adapt(asterism.weights(path, **UNUSUAL), tmp_path / "run", *changes)
    assert not (tmp_path / "run").exists()


def test_a_network_needs_weights(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"backbone.name = init takes the network from other weights: give --init"):
        adapt(None, tmp_path / "run")
    with pytest.raises(UserError, match=r"could not be|no such|is not supported|timm has no model"):
        adapt("resnet_of_mine", tmp_path / "run")


def test_networks_that_compute_something_else_are_refused(tmp_path: Path) -> None:
    path, _ = CASES["transformers: ViT without biases"].write(tmp_path)
    given = ["dim=48", "depth=2", "patch_size=6", f"mlp_ratio={80 / 48}", "image_size=30", "name=vit_small_patch16_224"]
    overrides = [*SMALL[1:], *(f"backbone.{each}" for each in given), "backbone.arguments={qkv_bias: false}"]

    def start(*more: str) -> None:
        asterism.pretrain("dino", SCENES, tmp_path / "run", init=path, overrides=[*overrides, *more])

    with pytest.raises(UserError, match=re.escape("has 4 attention heads, the backbone has 6; set backbone.heads=4")):
        start("backbone.heads=6")
    with pytest.raises(UserError, match="has the activation relu and the backbone gelu; or take the network"):
        start("backbone.heads=4")
