"""The nearest images in a collection, by whole image or by single concept."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from asterism.index.read import Index
from asterism.nn.text_encoder import TextEncoder
from asterism.ops.neighbours import Matches, merge_matches, nearest_by_concept, no_matches


def nearest_images(index: Index, queries: Float[Tensor, "q d"], k: int, without: Collection[str] = ()) -> Matches:
    """The k images most similar to each query, except those with a key in `without`; fewer if there are not enough."""
    return _nearest(index, index.vectors(), queries, k, without)


def nearest_to_texts(index: Index, encoder: TextEncoder, texts: Float[Tensor, "q e"], k: int) -> Matches:
    """The k images most similar to each text."""
    return _nearest(index, index.aligned(encoder), texts, k, ())


def nearest_concepts(index: Index, queries: Float[Tensor, "q d"], k: int, without: Collection[str] = ()) -> Matches:
    """The images with the concepts most similar to each query, and the number of the matching concept in each."""
    return _nearest(index, index.concepts(), queries, k, without)


def _nearest(
    index: Index,
    parts: Iterator[Float[Tensor, "_ r d"]],
    queries: Float[Tensor, "q d"],
    k: int,
    without: Collection[str],
) -> Matches:
    best, first = no_matches(len(queries)), 0
    for part in parts:
        keys = index.keys[first : first + len(part)]
        excluded = torch.tensor([key in without for key in keys]).expand(len(queries), -1)
        found = nearest_by_concept(queries.float().cpu(), part, k, excluded)
        best, first = merge_matches(best, found, first, k), first + len(part)
    allowed = int(best.similarity.isfinite().sum(dim=1).min())
    return Matches(best.similarity[:, :allowed], best.image[:, :allowed], best.token[:, :allowed])
