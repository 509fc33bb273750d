"""Mean average precision of rankings, as the revisited Oxford and Paris benchmarks count it (Radenović et al., 2018).

Ignored images are taken out of a ranking before anything is counted. Average precision is the area under the precision
curve by trapezoids, which differs from the usual sum over positives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True)
class RetrievalScores:
    """Shares in [0, 1]. Queries without a positive are NaN and count nowhere; the means are NaN if all are so."""

    ap: Float[Tensor, " q"]
    precision: Float[Tensor, "q k"]

    @property
    def map(self) -> float:
        return float(self.ap.nanmean())

    @property
    def mean_precision(self) -> Float[Tensor, " k"]:
        return self.precision.nanmean(0)


def retrieval_scores(
    rankings: Int[Tensor, "q n"],
    positives: Sequence[Int[Tensor, " _"]],
    ignored: Sequence[Int[Tensor, " _"]],
    ks: Sequence[int],
) -> RetrievalScores:
    """Scores of rankings (database rows, best first), given the rows that are right and those that do not count."""
    ap, precision = [], []
    for ranking, right, junk in zip(rankings, positives, ignored, strict=True):
        ranks = _ranks(ranking, right, junk)
        ap.append(average_precision(ranks))
        precision.append(precision_at(ranks, ks))
    return RetrievalScores(torch.tensor(ap, dtype=torch.float64), torch.tensor(precision, dtype=torch.float64))


def average_precision(ranks: Int[Tensor, " p"]) -> float:
    """Area under the precision curve of the ranks (ascending, from 0) at which the positives stand."""
    if not len(ranks):
        return float("nan")
    found, rank = torch.arange(len(ranks), dtype=torch.float64), ranks.double().cpu()
    before = torch.where(rank == 0, 1.0, found / rank.clamp(min=1))  # precision just before each positive
    after = (found + 1) / (rank + 1)
    return float(((before + after) / 2).mean())


def precision_at(ranks: Int[Tensor, " p"], ks: Sequence[int]) -> list[float]:
    """Share of positives among the first k; beyond the last positive a ranking is not blamed for anything."""
    if not len(ranks):
        return [float("nan")] * len(ks)
    last = int(ranks[-1]) + 1
    depths = [min(k, last) for k in ks]
    return [int((ranks < depth).sum()) / depth for depth in depths]


def _ranks(ranking: Int[Tensor, " n"], positives: Int[Tensor, " _"], ignored: Int[Tensor, " _"]) -> Int[Tensor, " p"]:
    """Ranks of the positives after the ignored images are gone."""
    kept = ranking[~torch.isin(ranking, ignored)]
    return torch.isin(kept, positives).nonzero().flatten()
