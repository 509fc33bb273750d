"""Everything the explorer shows: a collection, one or two models, and what is computed from them once."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from asterism.data.sources.index_cache import user_cache
from asterism.extras.explorer.answers import Answer, Pending, Refused
from asterism.extras.explorer.approximate import (
    EXACT_BELOW,
    ApproximateSearch,
    ExactSearch,
    Search,
    build_approximate,
    has_faiss,
)
from asterism.extras.explorer.collection import Collection, embedded, evenly
from asterism.extras.explorer.jobs import Jobs
from asterism.extras.explorer.labels import LOG, Labels
from asterism.extras.explorer.mapped import patches_of
from asterism.extras.explorer.model import ExploredModel, Recent, Seen
from asterism.extras.explorer.neighbourhood import Clusters, Neighbourhood, clusters, neighbourhood
from asterism.extras.explorer.query import Query
from asterism.features.cache import stored
from asterism.features.rows import Block
from asterism.images.centre_crop import center_square
from asterism.nn.fingerprint import encoder_fingerprint

_MOST_PLACES = 262_144  # patches that are searched; beyond, evenly spaced images represent the others
_GRAPH_EXACT_BELOW = 20_000  # images; comparing all with all takes minutes beyond
_KEPT_SEARCHES = 8  # files of approximate indices in the cache
_BATCH = 16  # images encoded at a time in the background, so that requests need not wait long
_THUMBNAILS = 4096


@dataclass(frozen=True)
class Places:
    """The patches of some images."""

    rows: list[int]  # images
    grid: tuple[int, int]
    vectors: Float[Tensor, "m d"]  # unit length, image by image
    search: Search

    @property
    def per_image(self) -> int:
        return self.grid[0] * self.grid[1]


@dataclass
class Explored:
    """The state of the server. Its collection and models do not change while it runs."""

    collection: Collection
    models: list[ExploredModel]
    writes: Path | None = None  # the only folder that may be written to
    jobs: Jobs = field(default_factory=Jobs)
    labels: Labels = field(init=False)
    thumbnails: Recent[tuple[int, int], Answer] = field(default_factory=lambda: Recent(_THUMBNAILS))

    def __post_init__(self) -> None:
        self.labels = Labels(self.collection.keys, self.writes and self.writes / LOG)

    def row(self, query: Query, name: str = "row") -> int:
        return query.integer(name, 0, len(self.collection) - 1)

    def model(self, query: Query) -> ExploredModel:
        return self.models[query.integer("model", 0, len(self.models) - 1, 0)]

    def see(self, model: ExploredModel, row: int) -> Seen:
        return model.see(row, lambda: self.collection.image(row))

    @property
    def search(self) -> Search:
        """Exact, or approximate once the index of a large collection is built."""
        return self._search("images", self.collection.vectors, EXACT_BELOW)

    @property
    def text_search(self) -> Search:
        """Among the images' vectors in the space of texts."""
        aligned = self.collection.aligned
        if aligned is None:
            raise Refused("this model is not aligned with text", 409)
        return self._search("aligned", aligned, EXACT_BELOW)

    @property
    def concept_search(self) -> Search:
        concepts = self.collection.concepts
        if concepts is None:
            raise Refused("this model has no concepts", 409)
        return self._search("concepts", concepts, EXACT_BELOW)

    def neighbourhood(self) -> Neighbourhood:
        vectors = self.collection.vectors

        def work() -> Neighbourhood:
            if len(vectors) < _GRAPH_EXACT_BELOW or not has_faiss():
                return neighbourhood(vectors, ExactSearch(vectors))
            return neighbourhood(vectors, _approximate(vectors))

        return self.jobs.result("neighbours", work)

    def clusters(self, count: int) -> Clusters:
        return self.jobs.result(f"clusters-{count}", lambda: clusters(self.collection.vectors, count))

    def places(self) -> Places:
        return self.jobs.result("places", self._places)

    def other_vectors(self) -> Float[Tensor, "n d"]:
        """Vectors of the second model for the same images."""
        other = self.models[1]

        def work() -> Tensor:
            found = embedded(self.collection.source, other.encoder, _BATCH, workers=0)
            if found.keys == self.collection.keys:
                return found.arrays["vectors"]
            place = {key: number for number, key in enumerate(found.keys)}
            return found.arrays["vectors"][torch.tensor([place[key] for key in self.collection.keys])]

        return self.jobs.result("other", work)

    def _search(self, name: str, vectors: Float[Tensor, "n d"], exact_below: int) -> Search:
        if len(vectors) < exact_below or not has_faiss():
            return ExactSearch(vectors)
        try:
            return self.jobs.result(f"search-{name}", lambda: _approximate(vectors))
        except (Pending, Refused):
            return ExactSearch(vectors)  # slower, and never wrong

    def _places(self) -> Places:
        collection, model = self.collection, self.models[0]
        grid = model.grid
        rows = evenly(len(collection), max(1, _MOST_PLACES // (grid[0] * grid[1])))

        def blocks(first: int, end: int) -> Iterator[Block]:
            if collection.index is not None and collection.index.has_patches:
                chosen = rows[first:end]
                for row, patches in zip(chosen, patches_of(collection.index, chosen), strict=True):
                    yield Block([collection.keys[row]], {"patches": [patches]})
                return
            for start in range(first, end, _BATCH):
                chosen = rows[start : min(end, start + _BATCH)]
                size = model.encoder.image_size
                pixels = torch.stack([center_square(collection.image(row), size, size) for row in chosen])
                patches = normalize(model.encode(pixels).patches, dim=-1)
                yield Block([collection.keys[row] for row in chosen], {"patches": list(patches)})

        identity = {
            "rows": "places",
            "encoder": encoder_fingerprint(model.encoder),
            "data": collection.source.fingerprint,
            "images": len(rows),
        }
        vectors = stored(identity, len(rows), blocks, batch_size=_BATCH).arrays["patches"]
        large = len(vectors) >= EXACT_BELOW and has_faiss()
        return Places(rows, grid, vectors, _approximate(vectors) if large else ExactSearch(vectors))


def _approximate(vectors: Float[Tensor, "n d"]) -> Search:
    """The approximate index of these vectors, from the cache or built now; named after a sample of their content."""
    sample = vectors[torch.tensor(evenly(len(vectors), 1000))].float().contiguous()
    name = hashlib.blake2b(f"{tuple(vectors.shape)}".encode() + sample.numpy().tobytes(), digest_size=16).hexdigest()
    path = user_cache() / "search" / f"{name}.faiss"
    if not path.exists():
        build_approximate(vectors, path)
        for old in sorted(path.parent.glob("*.faiss"), key=lambda file: -file.stat().st_mtime)[_KEPT_SEARCHES:]:
            old.unlink(missing_ok=True)
    return ApproximateSearch(path, vectors.shape[1], len(vectors))
