import sys

import pytest
import torch

from asterism.errors import MissingExtra, UserError
from asterism.viz.token_space import tokens_by_layer, tsne
from tests.evals.samples import small_encoder

G = torch.Generator().manual_seed(0)


def test_clusters_stay_together_and_seeds_repeat() -> None:
    centers = 5 * torch.eye(8)[:3]
    tokens = torch.cat([center + 0.1 * torch.randn(12, 8, generator=G) for center in centers])
    plane = tsne(tokens, perplexity=8)
    assert plane.shape == (36, 2)
    label = torch.arange(3).repeat_interleave(12)
    distance = torch.cdist(plane, plane).fill_diagonal_(torch.inf)
    assert label[distance.argmin(dim=1)].equal(label)
    assert plane.equal(tsne(tokens, perplexity=8))


def test_layers_of_an_encoder() -> None:
    images = torch.randint(256, (2, 3, 32, 32), generator=G, dtype=torch.uint8)
    encoder = small_encoder(32)
    places = tokens_by_layer(encoder, images, [0, 1])
    assert list(places) == ["layer 0", "layer 1"]
    assert places["layer 1"].equal(tsne(encoder.encode(images).patches.flatten(0, 1)))


def test_too_few_tokens_and_a_missing_package_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="t-SNE of 3 tokens"):
        tsne(torch.randn(3, 4, generator=G))
    monkeypatch.setitem(sys.modules, "sklearn.manifold", None)
    with pytest.raises(MissingExtra, match=r"asterism\[tsne\]"):
        tsne(torch.randn(9, 4, generator=G))
