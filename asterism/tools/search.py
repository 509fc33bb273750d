"""Finds the images of a collection that are most similar to an image or a sentence: `asterism search`.

The collection is a file that `asterism embed` wrote with the same model; the result is a contact sheet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jaxtyping import UInt8
from torch import Tensor

from asterism.errors import UserError
from asterism.images.pictures import read_picture
from asterism.index.images import open_images
from asterism.index.read import Index, open_index
from asterism.index.search import nearest_images, nearest_to_texts
from asterism.nn.encoder import Encoder
from asterism.nn.text_encoder import needs_text
from asterism.ops.neighbours import Matches
from asterism.tools.contact_sheet import SUFFIXES, SheetPicture, write_sheet, written_picture


@dataclass(frozen=True)
class Neighbour:
    """An image of the collection that is similar to a query."""

    key: str
    similarity: float  # cosine
    row: int  # in the index


class Found(dict[Path | str, list[Neighbour]]):
    """The neighbours of every query, and the sheet that shows them."""

    def __init__(self, neighbours: Mapping[Path | str, list[Neighbour]], sheet: Path) -> None:
        super().__init__(neighbours)
        self.sheet = sheet

    def summary(self) -> str:
        lines = []
        for query, neighbours in self.items():
            lines += [str(query), *(f"  {each.similarity:.3f}  {each.key}" for each in neighbours)]
        return "\n".join([*lines, str(self.sheet)])


def check_sheet(path: Path, overwrite: bool) -> Path:
    """Refuse a file that cannot or must not be written, before any work is done."""
    if path.suffix.lower() not in SUFFIXES:
        raise UserError(f"cannot write {path}: the name must end in {' or '.join(SUFFIXES)}")
    if path.is_dir() or (path.exists() and not overwrite):
        raise UserError(f"{path} already exists; replace it with --overwrite, or choose another --out")
    return path


def search_images(
    encoder: Encoder,
    index: Path,
    queries: Sequence[Path | str],
    out: Path,
    *,
    count: int = 12,
    data: str | None = None,
) -> Found:
    """The neighbours of every query, drawn on one contact sheet. A query is a file of an image, or a sentence."""
    texts = [query for query in queries if isinstance(query, str)]
    vectors = needs_text(encoder.eval(), "search by sentence").encode_text(texts) if texts else None
    collection = open_index(index, encoder)
    if not collection.keys:
        raise UserError(f"{index} contains no images; write it again with `asterism embed`")
    images = open_images(collection, data)
    paths = [query for query in queries if not isinstance(query, str)]
    pictures = dict(zip(paths, (read_picture(path) for path in paths), strict=True))
    found: dict[Path | str, list[Neighbour]] = {}
    if paths:
        matches = nearest_images(collection, encoder.eval().encode_cls(list(pictures.values())), count)
        found |= dict(zip(paths, _neighbours(collection, matches), strict=True))
    if vectors is not None:
        matches = nearest_to_texts(collection, needs_text(encoder, "search by sentence"), vectors, count)
        found |= dict(zip(texts, _neighbours(collection, matches), strict=True))
    rows = [
        [
            _query(query, pictures),
            *(SheetPicture(images[n.row].image, n.key, f"{n.similarity:.3f}") for n in found[query]),
        ]
        for query in queries
    ]
    write_sheet(rows, out, f"{len(collection.keys):,} images of {collection.facts.get('data')}")
    return Found({query: found[query] for query in queries}, out)


def _neighbours(collection: Index, matches: Matches) -> list[list[Neighbour]]:
    return [
        [Neighbour(collection.keys[row], similarity, row) for similarity, row in zip(values, places, strict=True)]
        for values, places in zip(matches.similarity.tolist(), matches.image.tolist(), strict=True)
    ]


def _query(query: Path | str, pictures: Mapping[Path, UInt8[Tensor, "3 _ _"]]) -> SheetPicture:
    if isinstance(query, str):
        return SheetPicture(written_picture(query), query, "sentence")
    return SheetPicture(pictures[query], query.name, "query")
