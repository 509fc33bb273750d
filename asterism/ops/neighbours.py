"""Nearest neighbours by cosine similarity, and the weighted vote among them (Wu et al., 2018).

Both sides are visited in chunks, so memory is `_QUERIES × _BANK` similarities plus k neighbours per query, whatever the
number of rows. The votes are scattered straight into [queries, classes]; a one-hot tensor of k × classes is never made.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

_QUERIES = 1024  # rows per chunk; 1024 × 16384 similarities are 64 MB
_BANK = 16384


def nearest(
    queries: Float[Tensor, "q d"], bank: Float[Tensor, "n d"], k: int
) -> tuple[Float[Tensor, "q {k}"], Int[Tensor, "q {k}"]]:
    """Cosine similarity and row of the k nearest rows of the bank, nearest first."""
    assert 1 <= k <= len(bank), f"k = {k} of {len(bank)} rows"
    similarity = queries.new_full((len(queries), 0), 0.0, dtype=torch.float32)
    index = torch.empty(len(queries), 0, dtype=torch.int64, device=queries.device)
    for start, keys in _chunks(bank, _BANK):
        merged = [
            _keep_largest(
                unit @ keys.T, start, similarity[first : first + len(unit)], index[first : first + len(unit)], k
            )
            for first, unit in _chunks(queries, _QUERIES)
        ]
        similarity, index = torch.cat([s for s, _ in merged]), torch.cat([i for _, i in merged])
    return similarity, index


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
) -> dict[str, float]:
    """Top-1 and (above five classes) top-5 accuracy in percent for every k, as {"top1_k20": …}.

    A k above the number of training rows becomes that number. A class without a single vote is never counted as right.
    """
    ks = clip_neighbours([k] if isinstance(k, int) else k, len(train_features))
    similarity, index = nearest(test_features, train_features, ks[-1])
    labels = train_labels[index]
    accuracy = {}
    for count in ks:
        ballot = votes(similarity[:, :count], labels[:, :count], classes, temperature)
        share, ranking = ballot.topk(min(5, classes))
        right = (ranking == test_labels[:, None]) & (share > 0)
        accuracy[f"top1_k{count}"] = 100 * right[:, 0].double().mean().item()
        if classes > 5:
            accuracy[f"top5_k{count}"] = 100 * right.any(1).double().mean().item()
    return accuracy


def clip_neighbours(ks: Sequence[int], rows: int) -> list[int]:
    """The numbers of neighbours that `rows` rows allow, ascending."""
    return sorted({min(k, rows) for k in ks})


def _chunks(rows: Float[Tensor, "n d"], size: int) -> Iterator[tuple[int, Float[Tensor, "m d"]]]:
    """(first row, unit rows in float32) of each chunk."""
    for start in range(0, len(rows), size):
        yield start, F.normalize(rows[start : start + size].float(), dim=1)


def _keep_largest(
    candidates: Float[Tensor, "q m"], start: int, best: Float[Tensor, "q j"], best_index: Int[Tensor, "q j"], k: int
) -> tuple[Float[Tensor, "q i"], Int[Tensor, "q i"]]:
    """The k largest of the best so far and of the candidates, whose first column is row `start` of the bank."""
    top, column = candidates.topk(min(k, candidates.shape[1]))
    pool, rows = torch.cat([best, top], 1), torch.cat([best_index, column + start], 1)
    top, place = pool.topk(min(k, pool.shape[1]))
    return top, rows.gather(1, place)
