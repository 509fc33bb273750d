"""Finds the images of a collection that are most similar to an image or a sentence: `asterism search`.

The collection is a file that `asterism embed` wrote with the same model. The result is a contact sheet: rows of small
pictures with captions, as one page or one image.
"""

from __future__ import annotations

import base64
import io
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import chain
from itertools import count as numbers
from pathlib import Path

from jaxtyping import UInt8
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from asterism.errors import UserError
from asterism.files import replacing
from asterism.images.centre_crop import center_square
from asterism.images.decode import from_pillow
from asterism.images.pictures import read_picture
from asterism.images.write import to_pillow
from asterism.index.images import open_images
from asterism.index.read import Index, open_index
from asterism.index.search import nearest_images, nearest_to_texts
from asterism.nn.encoder import Encoder
from asterism.nn.text_encoder import needs_text
from asterism.ops.neighbours import Matches
from asterism.viz.console import one_line
from asterism.viz.page import page


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


def usual_sheet(overwrite: bool) -> Path:
    """neighbours.html in the current folder, or neighbours-2.html and so on if there is one already."""
    first = Path("neighbours.html")
    later = (first.with_stem(f"{first.stem}-{number}") for number in numbers(2))
    return first if overwrite else next(path for path in chain([first], later) if not path.exists())


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


SUFFIXES = (".html", ".png")
_SIDE = 180  # pixels of a picture
_GAP, _CAPTION = 14, 40
_COLUMNS = 7  # pictures per line of a PNG
_PAPER, _INK, _FAINT, _FRAME = (250, 250, 248), (30, 32, 36), (120, 124, 130), (230, 75, 53)


@dataclass(frozen=True)
class SheetPicture:
    """One picture; the first of a row is the query."""

    image: UInt8[Tensor, "3 h w"]
    name: str
    note: str


def written_picture(text: str) -> UInt8[Tensor, "3 h w"]:
    """A sentence as a picture, for a query that is not an image."""
    side = 2 * _SIDE
    canvas = Image.new("RGB", (side, side), _PAPER)
    lines = textwrap.wrap(text, 18)[:9]
    ImageDraw.Draw(canvas).text((side / 2, side / 2), "\n".join(lines), _INK, ImageFont.load_default(34), "mm")
    return from_pillow(canvas, text)


def write_sheet(rows: Sequence[Sequence[SheetPicture]], path: Path, title: str) -> None:
    """Write the sheet atomically."""
    with replacing(path) as temporary:
        if path.suffix.lower() == ".png":
            _drawn(rows).save(temporary, format="PNG")
        else:
            temporary.write_text(_written(rows, title), encoding="utf-8")


def _written(rows: Sequence[Sequence[SheetPicture]], title: str) -> str:
    sections = []
    for row in rows:
        figures = "".join(_figure(tile, place == 0) for place, tile in enumerate(row))
        sections.append(f'<section><h2>{escape(row[0].name)}</h2><div class="sheet">{figures}</div></section>')
    return page("Nearest images", title, sections)


def _figure(tile: SheetPicture, is_query: bool) -> str:
    buffer = io.BytesIO()
    _square(tile.image, 2 * _SIDE).save(buffer, format="JPEG", quality=88)
    data = base64.b64encode(buffer.getvalue()).decode()
    frame = ' class="query"' if is_query else ""
    return (
        f'<figure><img{frame} src="data:image/jpeg;base64,{data}" alt="{escape(tile.name)}" '
        f'width="{2 * _SIDE}" height="{2 * _SIDE}">'
        f"<figcaption><b>{escape(tile.note)}</b><br>"
        f"{escape(tile.name)}</figcaption></figure>"
    )


def _drawn(rows: Sequence[Sequence[SheetPicture]]) -> Image.Image:
    columns = min(_COLUMNS, max(len(row) for row in rows))
    lines = [row[first : first + columns] for row in rows for first in range(0, len(row), columns)]
    width, height = _SIDE + _GAP, _SIDE + _GAP + _CAPTION
    sheet = Image.new("RGB", (columns * width + _GAP, len(lines) * height + _GAP), _PAPER)
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(13)
    queries = {id(row[0]) for row in rows}
    for y, line in enumerate(lines):
        for x, tile in enumerate(line):
            left, top = _GAP + x * width, _GAP + y * height
            sheet.paste(_square(tile.image, _SIDE), (left, top))
            if id(tile) in queries:
                draw.rectangle((left - 4, top - 4, left + _SIDE + 3, top + _SIDE + 3), outline=_FRAME, width=3)
            draw.text((left, top + _SIDE + 5), tile.note, _INK, font)
            draw.text((left, top + _SIDE + 21), _shortened(tile.name, font), _FAINT, font)
    return sheet


def _square(image: Tensor, side: int) -> Image.Image:
    return to_pillow(center_square(image, side, side))


def _shortened(name: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont) -> str:
    """The end of a name, as much as fits below a picture."""
    name = one_line(name)
    if font.getlength(name) <= _SIDE:
        return name
    while font.getlength(f"…{name}") > _SIDE:
        name = name[1:]
    return f"…{name}"
