"""One label per patch from labels per pixel, and labels of patches from their labelled neighbours."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int, Integer
from torch import Tensor

Cell = tuple[int, int]  # rows and columns of pixels in a patch


def class_counts(
    masks: Integer[Tensor, "b h w"], cell: Cell, classes: int, void: int
) -> Int[Tensor, "b rows columns c"]:
    """Pixels of each class in each patch; the last of the classes + 1 entries counts the void ones."""
    images, height, width = masks.shape
    rows, columns = height // cell[0], width // cell[1]
    assert (rows * cell[0], columns * cell[1]) == (height, width), f"{height}×{width} pixels in patches of {cell}"
    labels = masks.long()
    labels = torch.where(labels == void, classes, labels)
    patches = torch.arange(images * rows * columns, device=masks.device).view(images, rows, 1, columns, 1)
    places = patches * (classes + 1) + labels.view(images, rows, cell[0], columns, cell[1])
    counts = torch.bincount(places.flatten(), minlength=images * rows * columns * (classes + 1))
    return counts.view(images, rows, columns, classes + 1)


def majority_labels(counts: Int[Tensor, "*patch c"], void: int) -> Int[Tensor, "*patch"]:
    """The most frequent class of the pixels that are not void, the smallest on ties; void if all pixels are void."""
    known = counts[..., :-1]
    return torch.where(known.sum(-1) > 0, _first_largest(known), void)


def mode_labels(counts: Int[Tensor, "*patch c"], void: int) -> Int[Tensor, "*patch"]:
    """The most frequent label; void counts like any other label and is the largest."""
    found = _first_largest(counts)
    return torch.where(found == counts.shape[-1] - 1, void, found)


def soft_labels(counts: Int[Tensor, "*patch c"]) -> Float[Tensor, "*patch k"]:
    """Share of each class; void pixels count as class 0, as in the evaluator that uses shares."""
    shares = counts[..., :-1].float()
    shares[..., 0] += counts[..., -1]
    return shares / counts.sum(-1, keepdim=True)


def mean_of_neighbours(
    similarity: Float[Tensor, "q k"], labels: Float[Tensor, "q k c"], temperature: float
) -> Float[Tensor, "q c"]:
    """Soft labels of the neighbours, weighted by the softmax of cosine / temperature."""
    weights = torch.softmax(similarity / temperature, dim=1)
    return torch.einsum("qk,qkc->qc", weights, labels)


def _first_largest(counts: Int[Tensor, "*patch c"]) -> Int[Tensor, "*patch"]:
    """The index of the largest count, the first on ties: argmax alone does not specify which one it returns."""
    classes = counts.shape[-1]
    return (counts * classes - torch.arange(classes, device=counts.device)).argmax(-1)
