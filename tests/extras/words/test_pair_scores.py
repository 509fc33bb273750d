"""Scores of pairs against cases made by hand, with ties."""

import pytest
import torch

from asterism.extras.words.pair_scores import pair_scores, recall


def test_scores_by_a_loop() -> None:
    similarity = torch.randint(0, 4, (200, 2, 2), generator=torch.Generator().manual_seed(0)).float()  # many ties
    found = pair_scores(similarity)
    for number, s in enumerate(similarity.tolist()):
        text = s[0][0] > s[0][1] and s[1][1] > s[1][0]
        image = s[0][0] > s[1][0] and s[1][1] > s[0][1]
        assert (bool(found.text[number]), bool(found.image[number])) == (text, image)
        assert bool(found.group[number]) == (text and image)
    assert 0 < int(found.group.sum()) < int(found.text.sum()) < 200


def test_recall_by_hand() -> None:
    """Three queries and four targets; query 2 has two matching targets, and the second is its best."""
    queries = torch.eye(3)
    targets = torch.tensor([[0.9, 0.1, 0.2], [0.9, 0.8, 0.3], [0.1, 0.9, 0.1], [0.2, 0.1, 0.9]])
    matches = torch.tensor([[0, 0], [1, 1], [2, 0], [2, 3]])
    # Query 0: target 1 is as similar as its own, so its rank is 1. Query 1: target 2 is better. Query 2: first.
    assert recall(queries, targets, matches, (1, 2)) == {1: pytest.approx(100 / 3), 2: 100.0}


def test_recall_of_equal_similarities_is_zero() -> None:
    same = torch.ones(5, 3)
    matches = torch.arange(5)[:, None].expand(-1, 2)
    assert recall(same, same, matches, (1, 4, 5)) == {1: 0.0, 4: 0.0, 5: 100.0}


def test_recall_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(1)
    queries, targets = torch.randn(50, 6, generator=generator), torch.randn(40, 6, generator=generator)
    matches = torch.stack([torch.arange(50), torch.randint(0, 40, (50,), generator=generator)], dim=1)
    whole = recall(queries, targets, matches, (1, 5, 10))
    monkeypatch.setattr("asterism.extras.words.pair_scores._AT_ONCE", 7)
    assert recall(queries, targets, matches, (1, 5, 10)) == whole
    assert 0 < whole[10] < 100
