"""Mean average precision of rankings, as in the revisited Oxford and Paris benchmarks (Radenović et al., 2018).

Ignored images are removed from a ranking before anything is counted. Average precision is the area under the precision
curve by the trapezoidal rule, which differs from the usual sum over positives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True)
class RetrievalScores:
    """Shares in [0, 1]. Queries without a positive are NaN and left out of the means, which are NaN if all are."""

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
    """Scores of rankings (database rows, best first), given the positive rows and the ignored ones."""
    ap, precision = [], []
    for ranking, right, junk in zip(rankings, positives, ignored, strict=True):
        ranks = _ranks(ranking, right, junk)
        ap.append(average_precision(ranks))
        precision.append(precision_at(ranks, ks))
    return RetrievalScores(torch.tensor(ap, dtype=torch.float64), torch.tensor(precision, dtype=torch.float64))


def average_precision(ranks: Int[Tensor, " p"]) -> float:
    """Area under the precision curve of the ranks (ascending, from 0) of the positives."""
    if not len(ranks):
        return float("nan")
    found, rank = torch.arange(len(ranks), dtype=torch.float64), ranks.double().cpu()
    before = torch.where(rank == 0, 1.0, found / rank.clamp(min=1))  # precision just before each positive
    after = (found + 1) / (rank + 1)
    return float(((before + after) / 2).mean())


def precision_at(ranks: Int[Tensor, " p"], ks: Sequence[int]) -> list[float]:
    """Share of positives among the first k; ranks beyond the last positive do not count against a ranking."""
    if not len(ranks):
        return [float("nan")] * len(ks)
    last = int(ranks[-1]) + 1
    depths = [min(k, last) for k in ks]
    return [int((ranks < depth).sum()) / depth for depth in depths]


def _ranks(ranking: Int[Tensor, " n"], positives: Int[Tensor, " _"], ignored: Int[Tensor, " _"]) -> Int[Tensor, " p"]:
    """Ranks of the positives after the ignored images are removed."""
    kept = ranking[~torch.isin(ranking, ignored)]
    return torch.isin(kept, positives).nonzero().flatten()
