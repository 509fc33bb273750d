"""Finds the images of a collection that are most similar to a query: `asterism search`.

The collection is a file that `asterism embed` wrote with the same model; the result is a contact sheet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from asterism.errors import UserError
from asterism.images.pictures import read_picture
from asterism.index.images import open_images
from asterism.index.read import open_index
from asterism.index.search import nearest_images
from asterism.nn.encoder import Encoder
from asterism.tools.contact_sheet import SUFFIXES, SheetPicture, write_sheet


@dataclass(frozen=True)
class Neighbour:
    """An image of the collection that is similar to a query."""

    key: str
    similarity: float  # cosine
    row: int  # in the index


def check_sheet(path: Path, overwrite: bool) -> Path:
    """Refuse a file that cannot or must not be written, before any work is done."""
    if path.suffix.lower() not in SUFFIXES:
        raise UserError(f"cannot write {path}: the name must end in {' or '.join(SUFFIXES)}")
    if path.is_dir() or (path.exists() and not overwrite):
        raise UserError(f"{path} already exists; replace it with --overwrite, or choose another --out")
    return path


def search_images(
    encoder: Encoder, index: Path, queries: Sequence[Path], out: Path, *, count: int = 12, data: str | None = None
) -> dict[Path, list[Neighbour]]:
    """The neighbours of every query, drawn on one contact sheet."""
    collection = open_index(index, encoder)
    if not collection.keys:
        raise UserError(f"{index} contains no images; write it again with `asterism embed`")
    images = open_images(collection, data)
    pictures = [read_picture(path) for path in queries]
    matches = nearest_images(collection, encoder.eval().encode(pictures).cls, count)
    found = [
        [Neighbour(collection.keys[row], similarity, row) for similarity, row in zip(values, places, strict=True)]
        for values, places in zip(matches.similarity.tolist(), matches.image.tolist(), strict=True)
    ]
    rows = [
        [
            SheetPicture(picture, path.name, "query"),
            *(SheetPicture(images[n.row].image, n.key, f"{n.similarity:.3f}") for n in own),
        ]
        for path, picture, own in zip(queries, pictures, found, strict=True)
    ]
    write_sheet(rows, out, f"{len(collection.keys):,} images of {collection.facts.get('data')}")
    return dict(zip(queries, found, strict=True))
