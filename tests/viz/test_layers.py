import pytest
import torch

from asterism.nn.backbone import BackboneConfig, build_backbone
from asterism.nn.encoder import Encoder
from asterism.viz.layers import layers_of, tokens_of_layers, tsne

IMAGES = torch.randint(256, (2, 3, 16, 16), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    torch.manual_seed(0)
    config = BackboneConfig(name="vit_tiny_patch16_224", image_size=16, patch_size=8, dim=16, depth=5, heads=2)
    return Encoder(build_backbone(config)).eval()


def test_layers_are_counted_from_the_patch_embedding(encoder: Encoder) -> None:
    assert layers_of(encoder.backbone) == [0, 1, 2, 3, 4, 5]
    assert layers_of(encoder.backbone, 3) == [0, 2, 5]
    pixels = encoder.normalise(IMAGES)
    last, none, first = tokens_of_layers(encoder, IMAGES, [5, 0, 1])
    assert last.patches.equal(encoder.backbone(pixels).patches)
    assert none.patches.equal(encoder.backbone.embedded(pixels).patches)
    assert first.patches.equal(encoder.backbone.layers(pixels, [0])[0].patches)
    assert tokens_of_layers(encoder, IMAGES, [0])[0].patches.equal(none.patches)


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
