import torch

from asterism.viz.affinity import aggregated_similarity, looked_at, probed

G = torch.Generator().manual_seed(0)


def test_aggregated_similarity_is_the_sum_of_all_maps() -> None:
    patches = torch.randn(2, 6, 5, generator=G)
    ours = aggregated_similarity(patches, (2, 3))
    for image in range(2):
        score = torch.zeros(6)
        for i in range(6):
            for j in range(6):
                score[i] += torch.cosine_similarity(patches[image, i], patches[image, j], dim=0)
        torch.testing.assert_close(ours[image].flatten(), score / score.max())


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
