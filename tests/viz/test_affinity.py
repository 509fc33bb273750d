import torch

from asterism.viz.affinity import (
    aggregated_similarity,
    aggregated_similarity_by_layer,
    looked_at,
    probe_attention,
    probed,
    ringed,
)
from asterism.viz.pictures import heat, magnified
from tests.evals.samples import small_encoder

G = torch.Generator().manual_seed(0)
IMAGES = torch.randint(256, (2, 3, 32, 32), generator=G, dtype=torch.uint8)


def test_aggregated_similarity_is_the_sum_of_all_maps() -> None:
    patches = torch.randn(2, 6, 5, generator=G)
    ours = aggregated_similarity(patches, (2, 3))
    for image in range(2):
        score = torch.zeros(6)
        for i in range(6):
            for j in range(6):
                score[i] += torch.cosine_similarity(patches[image, i], patches[image, j], dim=0)
        torch.testing.assert_close(ours[image].flatten(), score / score.max())


def test_every_layer_is_shown_including_the_patch_embedding() -> None:
    encoder = small_encoder(32)
    shown = aggregated_similarity_by_layer(encoder, IMAGES)
    assert list(shown) == ["layer 0", "layer 1"]
    assert list(aggregated_similarity_by_layer(encoder, IMAGES, [1])) == ["layer 1"]
    embedded = encoder.backbone.embedded(encoder.normalise(IMAGES))
    expected = heat(aggregated_similarity(embedded.patches, embedded.grid), magnified(IMAGES), span=(0.0, 1.0))
    assert shown["layer 0"].equal(expected)
    assert not shown["layer 1"].equal(expected)


def test_attention_is_of_the_class_token_or_of_all_patches() -> None:
    attention = torch.rand(2, 3, 7, 7, generator=G)  # one token before six patches
    from_class, from_patches = (looked_at(attention, (2, 3), has_cls) for has_cls in (True, False))
    for head in range(3):
        assert from_class[1, head].flatten().equal(attention[1, head, 0, 1:])
        expected = sum(attention[1, head, 1 + patch, 1:] for patch in range(6)) / 6
        torch.testing.assert_close(from_patches[1, head].flatten(), expected)


def test_a_probe_is_the_row_of_its_patch() -> None:
    attention = torch.rand(2, 3, 7, 7, generator=G)  # one token before six patches
    query = torch.tensor([4, 0])
    maps = probed(attention, (2, 3), query)
    for image in range(2):
        expected = sum(attention[image, head, 1 + int(query[image]), 1:] for head in range(3)) / 3
        torch.testing.assert_close(maps[image].flatten(), expected)


def test_probes_are_ringed() -> None:
    shown = probe_attention(small_encoder(32), IMAGES, torch.tensor([5, 10]))
    green = (shown == torch.tensor([60, 255, 80], dtype=torch.uint8)[:, None, None]).all(dim=1)
    side = green.shape[-1] / 4  # of a patch, in the magnified picture
    for image, (row, column) in enumerate([(1, 1), (2, 2)]):
        where = green[image].nonzero().float()
        assert len(where) > 8
        expected = torch.tensor([side * row, side * column]) + side / 2 - 0.5
        torch.testing.assert_close(where.mean(dim=0), expected, atol=0.1, rtol=0)
    untouched = ringed(IMAGES, (4, 4), torch.tensor([0, 0]))[:, :, 12:]
    assert untouched.equal(IMAGES[:, :, 12:])
