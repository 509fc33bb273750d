from __future__ import annotations

import torch

from asterism.viz.objects import drawn_matches, object_masks, object_matches


def _pictures(count: int) -> torch.Tensor:
    return torch.randint(0, 256, (count, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def test_an_object_has_one_colour_in_both_views() -> None:
    gray = torch.full((1, 3, 8, 8), 128, dtype=torch.uint8)
    labels = torch.tensor([[[[0, 1], [2, 2]]], [[[2, 2], [-1, 0]]]])
    drawn = object_masks((gray, gray), labels)
    assert list(drawn) == ["view 1", "objects 1", "view 2", "objects 2"]
    first, second = drawn["objects 1"][0], drawn["objects 2"][0]
    assert first[:, 0, 0].equal(second[:, 7, 7])
    assert first[:, 7, 0].equal(second[:, 0, 0])
    assert not first[:, 0, 0].equal(first[:, 0, 7])
    assert second[:, 7, 0].float().mean() < 60


def test_matches_stand_side_by_side() -> None:
    pictures = _pictures(3)
    labels = torch.tensor([[[0, 1], [1, 1]], [[1, 0], [0, 0]], [[2, 2], [2, 0]]])
    query, found = (torch.tensor([0, 2]), torch.tensor([0, 0])), (torch.tensor([1, 0]), torch.tensor([1, 0]))
    drawn = drawn_matches(pictures, labels, query, found)
    assert drawn.shape == (2, 3, 8, 20)
    assert drawn[0, :, :4, :4].equal(pictures[0, :, :4, :4])
    assert drawn[0, :, :4, 12:16].equal(pictures[1, :, :4, :4])
    assert drawn[1, :, 4:, 4:8].equal(pictures[2, :, 4:, 4:])
    assert (drawn[:, :, :, 8:12] == 255).all()
    assert not drawn[0, :, 4:, :8].equal(pictures[0, :, 4:])
    again = object_matches(
        pictures[query[0]], labels[query[0]] == 0, pictures[found[0]], labels[found[0]] == found[1][:, None, None]
    )
    assert again.equal(drawn)
