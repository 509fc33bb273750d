"""The images to explore: their vectors, mapped from a file, and the images themselves."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn.functional import normalize

from asterism.data import Source
from asterism.data.crops import CenterCrops
from asterism.data.sources.folder import Folder
from asterism.errors import UserError
from asterism.extras.explorer.mapped import mapped_index
from asterism.features.encoding import Workers
from asterism.features.extract import image_rows
from asterism.features.rows import Stored
from asterism.index.images import IndexedImages, open_images
from asterism.index.read import Index, open_index
from asterism.nn.encoder import Encoder
from asterism.nn.text_encoder import TextEncoder


@dataclass(frozen=True)
class Collection:
    """One row per readable image."""

    name: str
    keys: list[str]
    vectors: Float[Tensor, "n d"]  # unit length
    concepts: Float[Tensor, "m d"] | None  # unit length; those of an image are consecutive
    images: IndexedImages
    source: Source
    labels: list[int] | None = None
    classes: list[str] | None = None
    columns: Mapping[str, list[float] | list[str]] = field(default_factory=dict)  # that users added to an index
    index: Index | None = None
    aligned: Float[Tensor, "n e"] | None = None  # unit length, in the space of texts; of models aligned with text
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def tokens(self) -> int:
        """Concepts per image."""
        return 0 if self.concepts is None else len(self.concepts) // len(self.keys)

    def image(self, row: int) -> UInt8[Tensor, "3 h w"]:
        if isinstance(self.source, Folder):  # reads a file of its own for every image; others may share a handle
            return self.images[row].image
        with self._guard:
            return self.images[row].image

    def files(self) -> dict[str, Path]:
        """The images' own files by key; none for images in shards and for generated ones."""
        if not isinstance(self.source, Folder):
            return {}
        return dict(zip(self.source.keys(), self.source.files(), strict=True))


def collection_of_index(path: Path, data: str | None, encoder: Encoder) -> Collection:
    """The images of a file that `asterism embed` wrote with this encoder."""
    index = open_index(path, encoder)
    if not index.keys:
        raise UserError(f"{path} contains no images; write it again with `asterism embed`")
    images = open_images(index, data)
    labels, classes = index.labels(), index.facts.get("classes")
    if labels is not None and (not isinstance(classes, list) or max(labels) >= len(classes)):
        classes = [str(number) for number in range(max(labels) + 1)]
    found = mapped_index(index, encoder if isinstance(encoder, TextEncoder) else None)
    return _collection(
        str(index.facts.get("data")), found, images, images.source, labels, classes, index.columns(), index
    )


def collection_of_source(source: Source, encoder: Encoder, batch_size: int = 64) -> Collection:
    """The images of a source, embedded now; vectors are kept in the feature cache."""
    found = embedded(source, encoder, batch_size)
    labels = None if found.labels is None else found.labels.tolist()
    images = IndexedImages(source, found.keys)
    return _collection(source.name, found, images, source, labels, source.classes if labels else None, {}, None)


def embedded(source: Source, encoder: Encoder, batch_size: int = 64, workers: Workers = "auto") -> Stored:
    """Unit `vectors`, `concepts` and `aligned` vectors of all readable images, as far as the encoder has them."""

    def rows(images: UInt8[Tensor, "b 3 s s"]) -> dict[str, list[Tensor]]:
        features = encoder.encode(images)
        arrays = {"vectors": list(_unit(features.cls)[:, None])}
        if features.sparse is not None:
            arrays["concepts"] = list(_unit(features.sparse))
        if features.aligned is not None:
            arrays["aligned"] = list(_unit(features.aligned)[:, None])
        return arrays

    crops, identity = CenterCrops(encoder.image_size, encoder.image_size), {"rows": "explorer"}
    return image_rows(encoder, source, crops, rows, identity, batch_size=batch_size, workers=workers)


def _collection(
    name: str,
    found: Stored,
    images: IndexedImages,
    source: Source,
    labels: list[int] | None,
    classes: list[str] | None,
    columns: Mapping[str, list[float] | list[str]],
    index: Index | None,
) -> Collection:
    arrays = found.arrays
    return Collection(
        name,
        found.keys,
        arrays["vectors"],
        arrays.get("concepts"),
        images,
        source,
        labels,
        classes,
        columns,
        index,
        arrays.get("aligned"),
    )


def _unit(vectors: Tensor) -> Tensor:
    return normalize(vectors.float(), dim=-1).cpu()


def evenly(count: int, most: int) -> list[int]:
    """At most `most` of the numbers below `count`, evenly spaced."""
    if count <= most:
        return list(range(count))
    return torch.linspace(0, count - 1, most).round().long().tolist()
