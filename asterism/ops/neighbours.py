"""Nearest neighbours by cosine similarity, and the weighted vote among them (Wu et al., 2018).

Both sides are processed in chunks, so memory is `_QUERIES × _BANK` similarities plus k neighbours per query for any
number of rows. Where most similarities in a large bank can be bounded with less work, they are not computed. Votes are
scattered directly into [queries, classes]; no one-hot tensor of k × classes is formed.

>>> bank, labels = torch.tensor([[1.0, 0.0], [2.0, 0.2], [0.0, 1.0]]), torch.tensor([0, 0, 1])
>>> similarity, rows = nearest(torch.tensor([[3.0, 0.0], [0.0, 3.0]]), bank, k=2)
>>> rows.tolist()
[[0, 1], [2, 1]]
>>> votes(similarity, labels[rows], classes=2, temperature=0.07).argmax(dim=1).tolist()
[0, 1]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from asterism.ops.bounded_search import nearest_by_bounds, strong_directions
from asterism.ops.largest import largest

_QUERIES = 1024  # rows per chunk; 1024 × 16384 similarities are 64 MB
_BANK = 16384
_BOUNDED = 1 << 17  # rows of a part from which on bounds can pay off

Searched = Callable[[int], None]  # called with the number of additional rows of the bank searched


def _no_progress(rows: int) -> None:
    """Report nothing."""


def nearest(
    queries: Float[Tensor, "q d"], bank: Float[Tensor, "n d"], k: int, searched: Searched = _no_progress
) -> tuple[Float[Tensor, "q {k}"], Int[Tensor, "q {k}"]]:
    """Cosine similarity and row of the k nearest rows of the bank, nearest first."""
    assert 1 <= k <= len(bank), f"k = {k} of {len(bank)} rows"
    everything = [range(len(bank))]
    basis = strong_directions(queries, bank, k) if len(bank) >= _BOUNDED else None
    if basis is not None:
        return nearest_by_bounds(queries, bank, everything, k, basis, searched)
    return _nearest_directly(queries, bank, [everything], k, searched)[0]


def nearest_in_parts(
    queries: Float[Tensor, "q d"], bank: Float[Tensor, "n d"], parts: Sequence[Sequence[range]], k: int
) -> list[tuple[Float[Tensor, "q _"], Int[Tensor, "q _"]]]:
    """The result of `nearest` in each part of the bank, given as ascending runs of rows; the whole part if it has
    fewer than k rows. Parts may overlap."""
    sizes = [sum(map(len, runs)) for runs in parts]
    small = sum(size for size in sizes if size < _BOUNDED)
    worth = max(sizes, default=0) >= max(_BOUNDED, 4 * small)  # small parts, searched one by one, must not cost as much
    basis = strong_directions(queries, bank, k) if worth else None
    if basis is None:
        return _nearest_directly(queries, bank, parts, k, _no_progress)
    found = []
    for runs, size in zip(parts, sizes, strict=True):
        if size >= _BOUNDED:
            found.append(nearest_by_bounds(queries, bank, runs, k, basis, _no_progress))
        else:
            rows = torch.cat([torch.arange(0), *(torch.arange(run.start, run.stop) for run in runs)])
            similarity, place = _nearest_directly(queries, bank[rows], [[range(size)]], k, _no_progress)[0]
            found.append((similarity, rows[place]))
    return found


@torch.no_grad()
def _nearest_directly(
    queries: Float[Tensor, "q d"],
    bank: Float[Tensor, "n d"],
    parts: Sequence[Sequence[range]],
    k: int,
    searched: Searched,
) -> list[tuple[Float[Tensor, "q _"], Int[Tensor, "q _"]]]:
    """The nearest rows in each part. Every similarity is computed once, whichever parts need it."""
    similarity = [queries.new_full((len(queries), 0), 0.0, dtype=torch.float32) for _ in parts]
    index = [torch.empty(len(queries), 0, dtype=torch.int64, device=queries.device) for _ in parts]
    product = similarity[0].new_empty(min(len(queries), _QUERIES) * min(len(bank), _BANK))  # reused by all chunks
    for start, keys in _chunks(bank, _BANK):
        inside = [_inside(runs, start, start + len(keys)) for runs in parts]
        searched_parts = [part for part, runs in enumerate(inside) if runs]
        merged: dict[int, list[tuple[Tensor, Tensor]]] = {part: [] for part in searched_parts}
        for first, unit in _chunks(queries, _QUERIES):
            candidates = product[: len(unit) * len(keys)].view(len(unit), len(keys))
            torch.mm(unit, keys.T, out=candidates)
            own = slice(first, first + len(unit))
            for part in searched_parts:
                best = (similarity[part][own], index[part][own])
                merged[part].append(_keep_largest(candidates, inside[part], start, best, k))
        for part, found_by_chunk in merged.items():
            similarity[part] = torch.cat([values for values, _ in found_by_chunk])
            index[part] = torch.cat([rows for _, rows in found_by_chunk])
        searched(len(keys))
    return list(zip(similarity, index, strict=True))


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
    searched: Searched = _no_progress,
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


def _chunks(rows: Float[Tensor, "n d"], size: int) -> Iterator[tuple[int, Float[Tensor, "m d"]]]:
    """(first row, unit rows in float32) of each chunk."""
    for start in range(0, len(rows), size):
        yield start, F.normalize(rows[start : start + size].float(), dim=1)


def _inside(runs: Sequence[range], start: int, end: int) -> list[range]:
    """The parts of the runs within start … end."""
    cut = (range(max(run.start, start), min(run.stop, end)) for run in runs)
    return [run for run in cut if run]


def _keep_largest(
    candidates: Float[Tensor, "q m"],
    runs: Sequence[range],
    start: int,
    best: tuple[Float[Tensor, "q j"], Int[Tensor, "q j"]],
    k: int,
) -> tuple[Float[Tensor, "q i"], Int[Tensor, "q i"]]:
    """The k largest of the best so far, with their rows, and of runs of candidates, whose first column is row `start`
    of the bank."""
    columns = [candidates[:, run.start - start : run.stop - start] for run in runs]
    new = columns[0] if len(columns) == 1 else torch.cat(columns, 1)
    rows = torch.cat([torch.arange(run.start, run.stop, device=new.device) for run in runs])
    values, known = best
    found, place = largest(new, min(k, new.shape[1]), values[:, -1:] if known.shape[1] == k else None)
    if not known.shape[1]:
        return found, rows[place]
    both, indices = torch.cat([values, found], 1), torch.cat([known, rows[place]], 1)
    values, place = both.topk(min(k, both.shape[1]))
    return values, indices.gather(1, place)
