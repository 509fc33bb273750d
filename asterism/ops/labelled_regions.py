"""Annotated regions as clusters of patches: the result of a perfect clustering.

>>> segments = torch.tensor([[[4, 4, 9, 9], [4, 4, 9, 9], [4, 4, 4, 4], [4, 4, 4, 4]]])
>>> labels_of_patches(segments, (2, 2)).tolist()
[[4, 9, 4, 4]]
>>> largest_regions(labels_of_patches(segments, (2, 2)), clusters=2).tolist()
[[0, 1, 0, 0]]
"""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor

from asterism.ops import streams
from asterism.ops.random import fold_each


def labels_of_patches(segments: Int[Tensor, "b h w"], grid: tuple[int, int]) -> Int[Tensor, "b n"]:
    """The label at the centre of each patch."""
    _, height, width = segments.shape
    rows, columns = grid
    y = ((torch.arange(rows, device=segments.device) + 0.5) * height / rows).long()
    x = ((torch.arange(columns, device=segments.device) + 0.5) * width / columns).long()
    return segments[:, y[:, None], x].flatten(1)


def largest_regions(labels: Int[Tensor, "b n"], clusters: int) -> Int[Tensor, "b n"]:
    """Any labels as 0 … clusters − 1: the largest regions of each image, largest first; −1 for the others.

    Negative labels mean unknown. Regions of equal size are ordered by their labels.
    """
    same = labels[:, :, None] == labels[:, None, :]
    size = same.sum(dim=-1) * (labels >= 0)
    # A region precedes another if it is larger, or of equal size with a smaller label; every region counts once.
    before = (size[:, None, :] > size[:, :, None]) | (
        (size[:, None, :] == size[:, :, None]) & (labels[:, None, :] < labels[:, :, None])
    )
    first = ~same.tril(diagonal=-1).any(dim=-1) & (labels >= 0)
    rank = (before & first[:, None, :]).sum(dim=-1)
    return torch.where((labels >= 0) & (rank < clusters), rank, -1)


def label_sets(
    labels: Int[Tensor, "v b n"], patches: Int[Tensor, "v b n"], clusters: int
) -> Int[Tensor, "b {clusters}"]:
    """A number for the set of labels of each cluster's patches, over all views; equal sets have equal numbers."""
    cluster_of, label = labels.transpose(0, 1).flatten(1), patches.transpose(0, 1).flatten(1)
    again = (cluster_of[:, :, None] == cluster_of[:, None]) & (label[:, :, None] == label[:, None])
    first = ~again.tril(diagonal=-1).any(dim=-1)  # so that every label counts once
    words = fold_each(label.flatten().long(), streams.Hash.BITS).view_as(label) * first
    sums = words.new_zeros(len(words), clusters + 1)
    return sums.scatter_add_(1, torch.where(cluster_of < 0, clusters, cluster_of), words)[:, :clusters]
