"""The weighted vote of the nearest neighbours (Wu et al., 2018), and how often it is right.

Votes are scattered directly into [queries, classes]; no one-hot tensor of k × classes is formed.

>>> bank, labels = torch.tensor([[1.0, 0.0], [2.0, 0.2], [0.0, 1.0]]), torch.tensor([0, 0, 1])
>>> similarity, rows = nearest(torch.tensor([[3.0, 0.0], [0.0, 3.0]]), bank, k=2)
>>> votes(similarity, labels[rows], classes=2, temperature=0.07).argmax(dim=1).tolist()
[0, 1]
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from asterism.ops.neighbours import Searched, nearest, no_progress

_QUERIES = 1024  # votes counted at a time


def votes(
    similarity: Float[Tensor, "q k"], labels: Int[Tensor, "q k"], classes: int, temperature: float
) -> Float[Tensor, "q {classes}"]:
    """Every neighbour gives exp(similarity / temperature) to its class."""
    weights = torch.exp(similarity / temperature)
    return weights.new_zeros(len(weights), classes).scatter_add_(1, labels, weights)


def knn_accuracy(
    train_features: Float[Tensor, "n d"],
    train_labels: Int[Tensor, " n"],
    test_features: Float[Tensor, "q d"],
    test_labels: Int[Tensor, " q"],
    k: int | Sequence[int],
    temperature: float,
    classes: int,
    searched: Searched = no_progress,
) -> dict[str, float]:
    """Top-1 and (above five classes) top-5 accuracy in percent for every k, as {"top1_k20": …}.

    A k above the number of training rows becomes that number. A class without a single vote never counts as correct.
    """
    ks = clip_neighbours([k] if isinstance(k, int) else k, len(train_features))
    similarity, index = nearest(test_features, train_features, ks[-1], searched)
    right = dict.fromkeys((f"top{top}_k{count}" for count in ks for top in ((1, 5) if classes > 5 else (1,))), 0)
    for start in range(0, len(index), _QUERIES):
        own = slice(start, start + _QUERIES)
        labels = train_labels[index[own]]
        for count in ks:
            share, ranking = votes(similarity[own, :count], labels[:, :count], classes, temperature).topk(
                min(5, classes)
            )
            hits = (ranking == test_labels[own, None]) & (share > 0)
            right[f"top1_k{count}"] += int(hits[:, 0].sum())
            if classes > 5:
                right[f"top5_k{count}"] += int(hits.any(1).sum())
    return {name: 100 * count / len(index) for name, count in right.items()}


def clip_neighbours(ks: Sequence[int], rows: int) -> list[int]:
    """The numbers of neighbours, each limited to `rows`, in ascending order without repeats."""
    return sorted({min(k, rows) for k in ks})
