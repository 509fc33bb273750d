"""CrIBo's oracles (table 11): objects, and matches between them, from labelled regions."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from asterism.errors import UserError
from asterism.ops.labelled_regions import label_sets, labels_of_patches, largest_regions
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
