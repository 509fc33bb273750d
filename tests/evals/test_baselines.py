from __future__ import annotations

import torch

from asterism.evals.baselines import PixelEncoder, untrained
from asterism.ops.random import generator
from tests.evals.samples import small_encoder


def test_pixels_are_the_image_itself() -> None:
    encoder = PixelEncoder()
    images = torch.randint(0, 256, (2, 3, 32, 32), generator=generator(0), dtype=torch.uint8)
    mean, std = torch.tensor(encoder.mean)[:, None, None], torch.tensor(encoder.std)[:, None, None]
    expected = ((images / 255 - mean) / std).flatten(1)
    torch.testing.assert_close(encoder.encode(images).cls, expected)
    assert encoder.encode(torch.zeros(1, 3, 64, 48, dtype=torch.uint8)).cls.shape == (1, 3072)


def test_untrained_has_the_same_shape_and_other_weights() -> None:
    encoder = small_encoder(seed=5)
    fresh = untrained(encoder)
    own, other = encoder.state_dict(), fresh.state_dict()
    assert {n: v.shape for n, v in own.items()} == {n: v.shape for n, v in other.items()}
    name = "backbone.network.blocks.0.attn.qkv.weight"
    assert not own[name].equal(other[name])
    assert untrained(encoder).state_dict()[name].equal(other[name])
    assert fresh.image_size == encoder.image_size


def test_untrained_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    untrained(small_encoder())
    assert torch.get_rng_state().equal(before)
