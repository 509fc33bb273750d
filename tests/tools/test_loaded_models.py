"""Evaluations, tools and pictures work with rotary positions, registers and attention pooling of loaded networks."""

from pathlib import Path

import pytest
import torch

import asterism
from asterism.images.masks import save_mask
from asterism.nn.weights.load import load_encoder
from asterism.viz.affinity import probe_attention
from tests.data.clips import frame_and_mask, write_frames
from tests.nn.weights.family_cases import CASES

pytest.importorskip("transformers")

KINDS = ["DINOv3", "timm file, SigLIP"]


@pytest.mark.parametrize("kind", KINDS)
def test_scores_tools_and_attention(kind: str, tmp_path: Path) -> None:
    case = CASES[kind]
    path, _ = case.write(tmp_path)
    encoder = load_encoder(path, **case.options)
    changes = ["dense-nn.shares=[0.5]", "dense-nn.draws=1"]
    data = "scenes:size=24,count=8"
    found = asterism.evaluate(encoder, data, "dense-nn", baselines=True, overrides=changes)["dense-nn"]
    assert set(found.baselines) == {"untrained", "pixels"}
    assert found.values

    written = asterism.embed(asterism.weights(path, **case.options), data, tmp_path / "e.npz", split="test", dense=True)
    assert written.dim == 64

    save_mask(frame_and_mask(0)[1], tmp_path / "first.png")
    frames = write_frames(tmp_path / "frames", 2)
    tracked = asterism.track(encoder, frames, tmp_path / "first.png", tmp_path / "out", short_side=18, multiple=6)
    assert tracked.frames == 2

    images = torch.randint(256, (2, 3, 24, 24), dtype=torch.uint8)
    weights = encoder.backbone.attention(encoder.normalise(images))
    prefix = encoder.backbone.has_cls + encoder.backbone.registers
    assert weights.shape == (2, 4, prefix + 16, prefix + 16)
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(weights.shape[:-1]))
    assert probe_attention(encoder, images, torch.tensor([0, 5])) is not None
