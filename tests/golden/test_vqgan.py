import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from asterism.nn.tokenizers.vqgan import MaskGitVqgan
from tests.golden.vectors import Vectors, read


@pytest.fixture(scope="module")
def vectors(golden: Path) -> Vectors:
    return read(golden / "vqgan" / "maskgit_tiny.npz")


@pytest.fixture(scope="module")
def layout(golden: Path) -> dict[str, list[int]]:
    return json.loads((golden / "vqgan" / "keys.json").read_text())["keys"]


@pytest.fixture(scope="module")
def tokenizer(vectors: Vectors, layout: dict[str, list[int]]) -> MaskGitVqgan:
    p = vectors.params
    model = MaskGitVqgan(
        p["hidden_channels"], p["channel_mult"], p["num_res_blocks"], p["z_channels"], p["num_embeddings"]
    )
    names = sorted(layout)
    model.load_state_dict({name: _filled(name, rank, layout[name], p) for rank, name in enumerate(names)})
    return model.eval()


def test_layout_is_that_of_the_public_weights(layout: dict[str, list[int]]) -> None:
    with torch.device("meta"):
        ours = {name: list(value.shape) for name, value in MaskGitVqgan().state_dict().items()}
    assert ours == layout


def test_filling(vectors: Vectors, tokenizer: MaskGitVqgan) -> None:
    state = tokenizer.state_dict()
    means = torch.stack([state[name].abs().double().mean() for name in sorted(state)])
    torch.testing.assert_close(means.float(), vectors["out_param_mean_abs"].float(), rtol=1e-5, atol=1e-7)
    for name, values in zip(vectors.params["probe_names"], vectors["out_probe_values"], strict=True):
        torch.testing.assert_close(state[name].flatten()[: len(values)], values, rtol=0, atol=1e-7)


@torch.no_grad()
def test_encode_and_decode(vectors: Vectors, tokenizer: MaskGitVqgan) -> None:
    image = vectors["in_image"]
    torch.testing.assert_close(tokenizer.encoder(image), vectors["out_latent"], rtol=0, atol=1e-4)
    codes = tokenizer.encode(image)
    assert torch.equal(codes.flatten(1), vectors["out_codes"])
    torch.testing.assert_close(tokenizer.decode(codes), vectors["out_recon"], rtol=0, atol=2e-4)
    unclamped = tokenizer.decoder(tokenizer.quantize.look_up(codes))
    torch.testing.assert_close(unclamped, vectors["out_recon_unclamped"], rtol=0, atol=2e-4)


def _filled(name: str, rank: int, shape: list[int], params: dict) -> Tensor:
    """Formula F9: pseudo-random weights from 32-bit integer hashes of (element, tensor, seed)."""
    x = (
        np.arange(math.prod(shape), dtype=np.uint64) * 2654435761
        + (rank + 1) * 2246822519
        + params["seed"] * 3266489917
    )
    word = np.uint64(0xFFFFFFFF)
    x &= word
    x ^= x >> np.uint64(16)
    x = x * np.uint64(2146121005) & word
    x ^= x >> np.uint64(15)
    x = x * np.uint64(2221713035) & word
    x ^= x >> np.uint64(16)
    u = (x.astype(np.float64) + 0.5) / 2**31 - 1
    if name == "quantize.embedding.weight":
        u = params["codebook_scale"] * u
    elif len(shape) == 4:
        u = u * math.sqrt(3 / math.prod(shape[1:])) * (0.25 if name == "decoder.conv_out.weight" else 1)
    elif name.endswith(".bias"):
        u = 0.1 * u + (0.5 if name == "decoder.conv_out.bias" else 0)
    else:
        u = 1 + 0.1 * u
    return torch.from_numpy(u.astype(np.float32)).reshape(shape)
