"""Published checkpoint layouts give the same features as their original code."""

from pathlib import Path
from typing import Any

import pytest
import torch

from asterism.nn.encoder import Encoder
from asterism.nn.weights.load import load_encoder
from tests.golden.vectors import Vectors, read

TOLERANCE = 1e-4  # README: abs 1e-4

# weight file → its vectors
FILES = {
    "mae_tiny.pth": "mae_tiny",
    "mae_tiny.safetensors": "mae_tiny",
    "dino_tiny.pth": "dino_tiny",
    "dino_tiny_backbone.pth": "dino_tiny",
    "ibot_tiny.pth": "ibot_tiny",
    "ibot_tiny_backbone.pth": "ibot_tiny",
    "dinov2_tiny.pth": "dinov2_tiny",
    "dinov2_reg4_tiny.pth": "dinov2_reg4_tiny",
    "hf_vit_mae_tiny.safetensors": "hf_vit_mae_tiny",
}


@pytest.fixture(params=FILES)
def case(request: pytest.FixtureRequest, golden: Path) -> tuple[Path, Vectors]:
    folder = golden / "checkpoints"
    return folder / request.param, read(folder / f"{FILES[request.param]}.npz")


def load(path: Path, vectors: Vectors, **options: Any) -> Encoder:
    heads = vectors.params.get("num_heads")  # only transformers stores it, in a file next to the weights
    return load_encoder(path, heads=heads, **options)


def close(ours: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(ours, expected, atol=TOLERANCE, rtol=0)


@torch.no_grad()
def test_features_equal_those_of_the_original_code(case: tuple[Path, Vectors]) -> None:
    path, vectors = case
    encoder = load(path, vectors)
    sizes = [name.removeprefix("in_image") for name in vectors.arrays if name.startswith("in_image")]
    assert "" in sizes
    for size in sizes:  # the original one, and for most another, to which positions are resampled
        tokens = encoder.backbone(vectors[f"in_image{size}"])
        assert tokens.cls is not None
        close(tokens.cls, vectors[f"out_cls{size}"])
        close(tokens.patches, vectors[f"out_patches{size}"])
        if f"out_registers{size}" in vectors.arrays:
            close(tokens.registers, vectors[f"out_registers{size}"])


@torch.no_grad()
def test_the_student_can_be_loaded(golden: Path) -> None:
    vectors = read(golden / "checkpoints" / "dino_tiny.npz")
    features = load(golden / "checkpoints" / "dino_tiny.pth", vectors, which="student")(vectors["in_image"])
    close(features.cls, vectors["out_student_cls"])
    close(features.patches, vectors["out_student_patches"])


def test_sizes_and_norms_are_those_of_the_originals(case: tuple[Path, Vectors]) -> None:
    path, vectors = case
    params = vectors.params
    encoder = load(path, vectors)
    backbone = encoder.backbone
    assert backbone.dim == params.get("embed_dim", params.get("hidden_size"))
    assert backbone.depth == params.get("depth", params.get("num_hidden_layers"))
    assert backbone.patch_size == params["patch_size"]
    assert encoder.image_size == params.get("img_size", params.get("image_size"))
    assert backbone.registers == params.get("num_register_tokens", 0)
    norms = {m.eps for m in backbone.modules() if isinstance(m, torch.nn.LayerNorm)}
    assert norms == {params["layer_norm_eps"]}
