"""Points in the plane: principal components at once, t-SNE and UMAP on a sample with the others placed among it."""

from __future__ import annotations

import warnings
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from asterism.errors import MissingExtra
from asterism.extras.explorer.approximate import ExactSearch
from asterism.extras.explorer.collection import evenly
from asterism.viz.layers import FEWEST, tsne

Layout = Literal["pca", "tsne", "umap"]
LAYOUTS: tuple[Layout, ...] = ("pca", "tsne", "umap")

_COVARIANCE_ROWS = 20_000
_SAMPLE = {"tsne": 3_000, "umap": 10_000}  # points laid out themselves, in about a minute on one core
_ANCHORS = 5  # laid-out neighbours that place each other point
_ROWS = 65_536
_LEVELS = 65_535  # of a coordinate on its way to the page


def positions(vectors: Float[Tensor, "n d"], layout: Layout) -> Float[Tensor, "n 2"]:
    if layout == "pca" or len(vectors) < FEWEST:
        return principal(vectors)
    chosen = torch.tensor(evenly(len(vectors), _SAMPLE[layout]))
    sample = vectors[chosen].float()
    laid_out = tsne(sample) if layout == "tsne" else _umap(sample)
    return laid_out if len(chosen) == len(vectors) else _placed(vectors, sample, laid_out)


def principal(vectors: Float[Tensor, "n d"]) -> Float[Tensor, "n 2"]:
    """The first two principal components. Directions come from a sample; signs are fixed by their largest entry."""
    sample = vectors[torch.tensor(evenly(len(vectors), _COVARIANCE_ROWS))].float()
    mean = sample.mean(dim=0)
    centred = sample - mean
    _, axes = torch.linalg.eigh((centred.T @ centred).double())
    top = axes[:, -2:].flip(1).float()
    if top.shape[1] < 2:  # vectors of one channel
        top = torch.cat([top, torch.zeros_like(top)], dim=1)
    top = top * top.gather(0, top.abs().argmax(dim=0, keepdim=True)).sign()
    parts = [(vectors[first : first + _ROWS].float() - mean) @ top for first in range(0, len(vectors), _ROWS)]
    return torch.cat(parts)


def _placed(
    vectors: Float[Tensor, "n d"], sample: Float[Tensor, "m d"], laid_out: Float[Tensor, "m 2"]
) -> Float[Tensor, "n 2"]:
    """Every point at the mean of its nearest laid-out neighbours, weighted by similarity; those stay where they are."""
    search, parts = ExactSearch(sample), []
    for first in range(0, len(vectors), 4096):
        similarity, rows = search.nearest(vectors[first : first + 4096].float(), _ANCHORS)
        weight = torch.softmax(similarity / 0.02, dim=1)
        parts.append((laid_out[rows] * weight[..., None]).sum(dim=1))
    return torch.cat(parts)


def _umap(vectors: Float[Tensor, "n d"]) -> Float[Tensor, "n 2"]:
    try:
        from umap import UMAP
    except ImportError:
        raise MissingExtra("umap-learn", "umap") from None
    neighbours = min(15, len(vectors) - 1)
    start = "pca" if len(vectors) > 3 else "random"
    with warnings.catch_warnings(action="ignore"):  # a fixed seed makes it run in one thread, which it warns about
        fitted = UMAP(n_neighbors=neighbours, metric="cosine", init=start, random_state=0).fit_transform(
            vectors.numpy()
        )
    return torch.from_numpy(np.asarray(fitted, dtype=np.float32))


def quantised(points: Float[Tensor, "n 2"]) -> bytes:
    """Coordinates as two little-endian 16-bit numbers per point: 4 bytes. The longer side fills 0 … 65535."""
    low, high = points.amin(dim=0), points.amax(dim=0)
    span = (high - low).amax().clamp_min(1e-12)
    centred = (points - (low + high) / 2) / span + 0.5
    return (centred.clamp(0, 1) * _LEVELS).round().to(torch.int32).numpy().astype("<u2").tobytes()
