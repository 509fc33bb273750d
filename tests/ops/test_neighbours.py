from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from asterism.ops import neighbours
from asterism.ops.neighbours import clip_neighbours, knn_accuracy, nearest, nearest_in_parts, votes
from asterism.ops.random import generator


def gaussian(key: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator(key))


def slow_accuracy(
    train: Tensor, train_y: Tensor, test: Tensor, test_y: Tensor, k: int, t: float
) -> tuple[float, float]:
    """Definition, one image at a time: (top-1, top-5) in percent; classes without votes never count."""
    first = fifth = 0
    for x, y in zip(test.double(), test_y.tolist(), strict=True):
        cosine = [float(x @ r / (x.norm() * r.norm())) for r in train.double()]
        order = sorted(range(len(cosine)), key=lambda i: -cosine[i])[:k]
        ballot: dict[int, float] = {}
        for i in order:
            ballot[int(train_y[i])] = ballot.get(int(train_y[i]), 0.0) + math.exp(cosine[i] / t)
        ranking = sorted(ballot, key=lambda c: -ballot[c])
        first += ranking[0] == y
        fifth += y in ranking[:5]
    return 100 * first / len(test), 100 * fifth / len(test)


@pytest.mark.parametrize("chunks", [(1024, 16384), (7, 9), (1, 4), (5, 50)])
def test_chunks_do_not_change_the_neighbours(chunks: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    queries, bank = gaussian(1, 23, 6), gaussian(2, 50, 6)
    cosine = torch.nn.functional.cosine_similarity(queries[:, None], bank[None], dim=-1)
    monkeypatch.setattr(neighbours, "_QUERIES", chunks[0])
    monkeypatch.setattr(neighbours, "_BANK", chunks[1])
    for k in (1, 12, 50):
        similarity, index = nearest(queries, bank, k)
        torch.testing.assert_close(similarity, cosine.sort(descending=True).values[:, :k])
        assert index.equal(cosine.argsort(descending=True)[:, :k])


def test_many_chunks_with_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "_BANK", 300)
    queries, bank = gaussian(1, 20, 6), gaussian(2, 2000, 6)
    _, index = nearest(queries, bank, 9)
    cosine = torch.nn.functional.normalize(queries) @ torch.nn.functional.normalize(bank).T
    assert index.equal(cosine.topk(9).indices)


@pytest.mark.parametrize("chunks", [(1024, 16384), (4, 9)])
def test_parts_are_searched_like_separate_banks(chunks: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "_QUERIES", chunks[0])
    monkeypatch.setattr(neighbours, "_BANK", chunks[1])
    queries, bank = gaussian(1, 11, 6), gaussian(2, 40, 6)
    parts = [[range(40)], [range(2, 5), range(17, 31)], [range(38, 40)]]
    for runs, (similarity, index) in zip(parts, nearest_in_parts(queries, bank, parts, 7), strict=True):
        rows = torch.tensor([row for run in runs for row in run])
        expected, place = nearest(queries, bank[rows], min(7, len(rows)))
        torch.testing.assert_close(similarity, expected)
        assert index.equal(rows[place])


def test_half_precision_rows_are_compared_in_single_precision() -> None:
    queries, bank = gaussian(1, 5, 8).half(), gaussian(2, 30, 8).half()
    assert nearest(queries, bank, 3)[0].equal(nearest(queries.float(), bank.float(), 3)[0])


def test_votes_add_up_per_class() -> None:
    similarity = torch.tensor([[0.9, 0.5, 0.1]])
    ballot = votes(similarity, torch.tensor([[2, 0, 2]]), classes=4, temperature=0.1)
    expected = torch.tensor([[math.exp(5), 0, math.exp(9) + math.exp(1), 0]])
    torch.testing.assert_close(ballot, expected)


def test_accuracy_equals_the_definition() -> None:
    train, test = gaussian(3, 60, 5), gaussian(4, 21, 5)
    train_y = torch.randint(0, 9, (60,), generator=generator(5))
    test_y = torch.randint(0, 9, (21,), generator=generator(6))
    accuracy = knn_accuracy(train, train_y, test, test_y, [20, 3], 0.07, 9)
    for k in (3, 20):
        top1, top5 = slow_accuracy(train, train_y, test, test_y, k, 0.07)
        assert accuracy[f"top1_k{k}"] == pytest.approx(top1)
        assert accuracy[f"top5_k{k}"] == pytest.approx(top5)
    assert list(accuracy) == ["top1_k3", "top5_k3", "top1_k20", "top5_k20"]


def test_more_neighbours_than_images_are_clipped() -> None:
    assert clip_neighbours([10, 20, 100, 200], 15) == [10, 15]
    features, labels = gaussian(1, 4, 3), torch.tensor([0, 0, 1, 1])
    assert list(knn_accuracy(features, labels, features, labels, [10, 200], 0.07, 2)) == ["top1_k4"]


def test_a_class_without_votes_never_counts_as_correct() -> None:
    train, test = torch.eye(3)[:1].repeat(6, 1), torch.eye(3)[:1]
    accuracy = knn_accuracy(train, torch.zeros(6, dtype=torch.int64), test, torch.tensor([1]), 6, 0.07, 8)
    assert accuracy == {"top1_k6": 0.0, "top5_k6": 0.0}
