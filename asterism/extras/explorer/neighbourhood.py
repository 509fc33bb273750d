"""What the nearest neighbours of all images show: near-duplicates, outliers, clusters and their most typical images."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import normalize

from asterism.extras.explorer.approximate import Search
from asterism.extras.explorer.collection import evenly

NEIGHBOURS = 10
_QUERIES = 1024
_SAMPLE, _ROUNDS = 20_000, 20  # of k-means
_ROWS = 65_536


@dataclass(frozen=True)
class Neighbourhood:
    """The nearest other images of every image, nearest first."""

    similarity: Float[Tensor, "n k"]
    rows: Int[Tensor, "n k"]

    @property
    def density(self) -> Float[Tensor, " n"]:
        """Mean similarity to the neighbours: small for outliers."""
        if not self.similarity.shape[1]:
            return torch.zeros(len(self.similarity))
        return self.similarity.mean(dim=1)

    def duplicates(self, least: float, most: int) -> list[list[tuple[int, float]]]:
        """Groups of images that are connected by similarities of at least `least`, largest similarity first.

        Each image comes with its highest similarity to another one of the group.
        """
        close = self.similarity >= least
        parent: dict[int, int] = {}

        def root(row: int) -> int:
            while parent.setdefault(row, row) != row:
                parent[row] = parent[parent[row]]
                row = parent[row]
            return row

        best: dict[int, float] = {}
        for row, place in close.nonzero().tolist():
            other, value = int(self.rows[row, place]), float(self.similarity[row, place])
            parent[root(row)] = root(other)
            for each in (row, other):
                best[each] = max(best.get(each, -1.0), value)
        groups: dict[int, list[tuple[int, float]]] = {}
        for row in sorted(best):
            groups.setdefault(root(row), []).append((row, best[row]))
        ordered = sorted(groups.values(), key=lambda group: -max(value for _, value in group))
        return ordered[:most]


def neighbourhood(vectors: Float[Tensor, "n d"], search: Search) -> Neighbourhood:
    """The neighbours of every image, without the image itself."""
    similarity, rows = [], []
    count = min(NEIGHBOURS, len(vectors) - 1)
    for first in range(0, len(vectors), _QUERIES):
        queries = vectors[first : first + _QUERIES].float()
        found, places = search.nearest(queries, count + 1)
        own = torch.arange(first, first + len(queries))[:, None] == places
        # An image that is not among its own neighbours, as with exact copies, displaces the farthest one.
        own[:, -1] |= ~own.any(dim=1)
        kept = (~own).nonzero()[:, 1].reshape(len(queries), -1)
        similarity.append(found.gather(1, kept))
        rows.append(places.gather(1, kept))
    width = min(part.shape[1] for part in rows)
    return Neighbourhood(
        torch.cat([part[:, :width] for part in similarity]), torch.cat([part[:, :width] for part in rows])
    )


@dataclass(frozen=True)
class Clusters:
    """Groups of similar images."""

    of: Int[Tensor, " n"]  # cluster of each image; cluster 0 is the largest
    similarity: Float[Tensor, " n"]  # to the centre of the image's own cluster
    centres: Float[Tensor, "k d"]

    def typical(self, cluster: int, most: int) -> list[tuple[int, float]]:
        """The images nearest to the centre of a cluster."""
        members = (self.of == cluster).nonzero()[:, 0]
        order = self.similarity[members].argsort(descending=True)[:most]
        return [(int(row), float(self.similarity[row])) for row in members[order]]


def usual_clusters(images: int, classes: int | None) -> int:
    """As many clusters as classes where these are known, else about √(n / 2), from 2 to 24."""
    return max(1, min(images, 24, max(2, classes or round((images / 2) ** 0.5))))


def clusters(vectors: Float[Tensor, "n d"], count: int) -> Clusters:
    """Spherical k-means, learnt on a sample; the start is drawn with k-means++ and a fixed seed."""
    sample = vectors[torch.tensor(evenly(len(vectors), _SAMPLE))].float()
    centres = _seeds(sample, count)
    for _ in range(_ROUNDS):
        own = (sample @ centres.T).argmax(dim=1)
        sums = torch.zeros_like(centres).index_add_(0, own, sample)
        empty = torch.bincount(own, minlength=count) == 0
        moved = torch.where(empty[:, None], centres, normalize(sums, dim=1))
        if torch.equal(moved, centres):
            break
        centres = moved
    parts = [(vectors[i : i + _ROWS].float() @ centres.T).max(dim=1) for i in range(0, len(vectors), _ROWS)]
    of, similarity = torch.cat([part.indices for part in parts]), torch.cat([part.values for part in parts])
    order = torch.bincount(of, minlength=count).argsort(descending=True)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(count)
    return Clusters(rank[of], similarity, centres[order])


def _seeds(sample: Float[Tensor, "n d"], count: int) -> Float[Tensor, "k d"]:
    generator = torch.Generator().manual_seed(0)
    chosen = [int(torch.randint(len(sample), (1,), generator=generator))]
    distance = 1 - sample @ sample[chosen[0]]
    for _ in range(count - 1):
        weight = distance.clamp_min(1e-9) ** 2
        chosen.append(int(torch.multinomial(weight, 1, generator=generator)))
        distance = torch.minimum(distance, 1 - sample @ sample[chosen[-1]])
    return sample[chosen].clone()
