"""Images nearest to a single concept: an image's distance is that of its nearest concept."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class Matches:
    """The best images for each query, nearest first, and the matching concept of each."""

    similarity: Float[Tensor, "q k"]  # cosine
    image: Int[Tensor, "q k"]
    token: Int[Tensor, "q k"]


def no_matches(queries: int) -> Matches:
    """An empty result."""
    places = torch.empty(queries, 0, dtype=torch.int64)
    return Matches(torch.empty(queries, 0), places, places)


def nearest_by_concept(
    queries: Float[Tensor, "q d"], bank: Float[Tensor, "n r d"], k: int, barred: Bool[Tensor, "q n"] | None = None
) -> Matches:
    """The k nearest images of a bank; every image is found once, through its nearest concept.

    barred: images that a query must not find, such as itself.
    """
    unit, keys = F.normalize(queries.float(), dim=1), F.normalize(bank.float(), dim=2)
    similarity, token = torch.einsum("qd,nrd->qnr", unit, keys).max(dim=2)
    if barred is not None:
        similarity = similarity.masked_fill(barred, -torch.inf)
    top, image = similarity.topk(min(k, len(bank)), dim=1)
    return Matches(top, image, token.gather(1, image))


def merge(best: Matches, more: Matches, first: int, k: int) -> Matches:
    """The k best of the matches so far and those in a further part of a bank, whose first image has number `first`."""
    similarity = torch.cat([best.similarity, more.similarity], dim=1)
    image = torch.cat([best.image, more.image + first], dim=1)
    token = torch.cat([best.token, more.token], dim=1)
    top, place = similarity.topk(min(k, similarity.shape[1]), dim=1)
    return Matches(top, image.gather(1, place), token.gather(1, place))
