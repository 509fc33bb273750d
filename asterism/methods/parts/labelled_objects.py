"""CrIBo's oracles (table 11): objects, and matches between them, from labelled regions.

Annotated regions as clusters of patches are the result of a perfect clustering.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from asterism.errors import UserError
from asterism.ops import streams
from asterism.ops.random import fold_each
from asterism.types import Tokens, View


def labelled_objects(views: Sequence[View], z: Sequence[Tokens], clusters: int) -> Int[Tensor, "v b n"]:
    """The largest labelled regions of each image, as a replacement for Q*."""
    labels = torch.cat(list(patch_labels(views, z)), dim=1)
    return torch.stack(largest_regions(labels, clusters).chunk(len(views), dim=1))


def object_meanings(
    views: Sequence[View], z: Sequence[Tokens], Q: Int[Tensor, "v b n"], clusters: int
) -> Int[Tensor, "b {clusters}"]:
    """A number for each object, equal for objects whose patches have the same set of labels."""
    return label_sets(Q, patch_labels(views, z), clusters)


def patch_labels(views: Sequence[View], z: Sequence[Tokens]) -> Int[Tensor, "v b n"]:
    """The label of every patch."""
    labels = []
    for view, tokens in zip(views, z, strict=True):
        if view.segments is None:
            raise UserError(
                "method.objects.algorithm or method.criterion = segments needs images with labelled regions, and these "
                "have none; choose another, or data with masks"
            )
        labels.append(labels_of_patches(view.segments, tokens.grid))
    return torch.stack(labels)


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
