import math

import pytest
import torch
from torch import Tensor

from asterism.ops.knn import clip_neighbours, knn_accuracy, votes
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
