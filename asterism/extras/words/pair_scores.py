"""Scores of images and sentences that belong together: recall, and the scores of Winoground and MMVP.

Ties never count as right: a model that gives all pairs the same similarity scores zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

_AT_ONCE = 1024  # queries whose similarities are in memory


def recall(
    queries: Float[Tensor, "q d"], targets: Float[Tensor, "t d"], matches: Int[Tensor, "m 2"], ks: Sequence[int]
) -> dict[int, float]:
    """Percentage of queries with a matching target among the k most similar ones; `matches` are (query, target).

    A query's rank is the number of other targets that are at least as similar as the best matching one.
    """
    ranks = []
    for first in range(0, len(queries), _AT_ONCE):
        similarity = queries[first : first + _AT_ONCE].float() @ targets.float().T
        own = matches[(matches[:, 0] >= first) & (matches[:, 0] < first + _AT_ONCE)].to(similarity.device)
        matching = torch.zeros_like(similarity, dtype=torch.bool)
        matching[own[:, 0] - first, own[:, 1]] = True
        best = similarity.masked_fill(~matching, -torch.inf).amax(dim=1, keepdim=True)
        ranks.append(((similarity >= best) & ~matching).sum(dim=1))
    rank = torch.cat(ranks)
    return {k: 100 * float((rank < k).float().mean()) for k in ks}


@dataclass(frozen=True)
class PairScores:
    """Which pairs of images and sentences are right, in three senses."""

    text: Bool[Tensor, " n"]  # for each image, its own sentence is the more similar one
    image: Bool[Tensor, " n"]  # for each sentence, its own image is the more similar one

    @property
    def group(self) -> Bool[Tensor, " n"]:
        return self.text & self.image


def pair_scores(similarity: Float[Tensor, "n 2 2"]) -> PairScores:
    """similarity[n, i, j]: of image i and sentence j of a pair. The image score is what MMVP counts."""
    own = similarity.diagonal(dim1=1, dim2=2)  # [n, 2]: image i and sentence i
    other_text = torch.stack([similarity[:, 0, 1], similarity[:, 1, 0]], dim=1)  # image i, the other sentence
    other_image = other_text.flip(1)  # sentence i, the other image
    return PairScores((own > other_text).all(dim=1), (own > other_image).all(dim=1))
