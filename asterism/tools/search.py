"""Finding the images of a collection that are most like others: `asterism search`.

The collection is a file that `asterism embed` wrote with the same model; the result is a contact sheet.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from asterism.errors import MissingExtra, UserError
from asterism.indexed_images import check_encoder, open_indexed_images
from asterism.nn.encoder import Encoder
from asterism.ops.neighbours import nearest
from asterism.tools.contact_sheet import SUFFIXES, Tile, write_sheet
from asterism.tools.files import read_picture

_PART = 16384  # images compared at a time


@dataclass(frozen=True)
class Neighbour:
    """An image of the collection."""

    key: str
    similarity: float  # cosine
    row: int  # in the index


class ImageIndex:
    """The vectors of a file that `asterism embed` wrote, read part by part."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise UserError(f"there is no index {path}; make it by `asterism embed MODEL --data DATA --out {path}`")
        if path.suffix not in (".parquet", ".npz"):
            raise UserError(f"{path} is no index; give a .parquet or .npz file that `asterism embed` made")
        self.path = path
        try:
            self._file, self.facts, self.keys, self.dim = (_parquet if path.suffix == ".parquet" else _npz)(path)
        except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
            raise UserError(f"{path} cannot be read as an index: {error}; make it again by `asterism embed`") from None

    def parts(self) -> Iterator[Float[Tensor, "n d"]]:
        if self.path.suffix == ".npz":
            vectors = self._file["embeddings"]
            for first in range(0, len(vectors), _PART):
                yield torch.from_numpy(vectors[first : first + _PART])
            return
        for batch in self._file.iter_batches(_PART, columns=["embedding"]):
            values = batch["embedding"].flatten().to_numpy(zero_copy_only=False)
            yield torch.from_numpy(values.reshape(-1, self.dim).copy())

    def nearest(self, queries: Float[Tensor, "q d"], count: int) -> list[list[Neighbour]]:
        """The most similar images of each query, most similar first."""
        similarity, rows, first = torch.empty(len(queries), 0), torch.empty(len(queries), 0, dtype=torch.int64), 0
        for part in self.parts():
            new, index = nearest(queries.float().cpu(), part, min(count, len(part)))
            similarity, rows = torch.cat([similarity, new], 1), torch.cat([rows, index + first], 1)
            similarity, place = similarity.topk(min(count, similarity.shape[1]))
            rows, first = rows.gather(1, place), first + len(part)
        return [
            [Neighbour(self.keys[row], value, row) for value, row in zip(values, places, strict=True)]
            for values, places in zip(similarity.tolist(), rows.tolist(), strict=True)
        ]


def check_sheet(path: Path, overwrite: bool) -> Path:
    """Refuse a file that cannot or must not be written, before any work is done."""
    if path.suffix.lower() not in SUFFIXES:
        raise UserError(f"cannot write {path}: the name must end in {' or '.join(SUFFIXES)}")
    if path.is_dir() or (path.exists() and not overwrite):
        raise UserError(f"{path} exists already; replace it by --overwrite, or choose another --out")
    return path


def search_images(
    encoder: Encoder, index: Path, queries: Sequence[Path], out: Path, *, count: int = 12, data: str | None = None
) -> dict[Path, list[Neighbour]]:
    """The neighbours of every query, drawn on one contact sheet."""
    collection = ImageIndex(index)
    if not collection.keys:
        raise UserError(f"{index} holds no images; embed some")
    check_encoder(index, collection.facts, encoder)
    images = open_indexed_images(index, collection.facts, collection.keys, data)
    pictures = [read_picture(path) for path in queries]
    vectors = encoder.eval().encode(list(queries)).cls.float().cpu()
    found = collection.nearest(vectors, count)
    rows = [
        [Tile(picture, path.name, "query"), *(Tile(images[n.row].image, n.key, f"{n.similarity:.3f}") for n in own)]
        for path, picture, own in zip(queries, pictures, found, strict=True)
    ]
    write_sheet(rows, out, f"{len(collection.keys):,} images of {collection.facts.get('data')}")
    return dict(zip(queries, found, strict=True))


def _parquet(path: Path) -> tuple[Any, dict[str, Any], list[str], int]:
    try:
        file = import_module("pyarrow.parquet").ParquetFile(path)
    except ImportError:
        raise MissingExtra("pyarrow", "parquet") from None
    facts = json.loads((file.schema_arrow.metadata or {})[b"asterism"])
    return file, facts, file.read(columns=["key"])["key"].to_pylist(), facts["shapes"]["embedding"][0]


def _npz(path: Path) -> tuple[Any, dict[str, Any], list[str], int]:
    file = np.load(path, allow_pickle=False)
    return file, json.loads(str(file["metadata"])), file["keys"].tolist(), file["embeddings"].shape[1]
