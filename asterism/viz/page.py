"""A self-contained HTML page without scripts or network access, for phones, dark mode and print.

Every text that comes from a user (names of runs, files and classes, settings) is escaped. As a second line of defence
the page's content security policy allows nothing but its own style sheet, by its hash, and pictures within the page: no
scripts, no requests, no forms. Style attributes are therefore not used either.
"""

from __future__ import annotations

import base64
import hashlib
import io
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib import resources
from itertools import zip_longest

from jaxtyping import UInt8
from PIL import Image, features
from torch import Tensor

from asterism.images.write import to_pillow

_ABREAST = 8  # pictures per line of a wide window
_MOST_COLUMNS = 64  # of a gallery that the style sheet knows
_TILE_SIZES = (64, 104, 128, 192)  # pixels
_STARS = (
    '<svg class="stars" viewBox="0 0 48 48" aria-hidden="true"><path d="M7 35 18 21 30 27 41 9"/>'
    '<circle cx="7" cy="35" r="2.6"/><circle cx="18" cy="21" r="3.4"/><circle cx="30" cy="27" r="2.6"/>'
    '<circle cx="41" cy="9" r="4.4"/></svg>'
)


Gallery = Mapping[str, UInt8[Tensor, "b 3 _ _"]]  # pictures by the name of their column, one per row


@dataclass(frozen=True)
class Tile:
    """A picture with a caption."""

    picture: UInt8[Tensor, "3 h w"]
    caption: str


@dataclass(frozen=True)
class Section:
    """A collapsible part of a page; one without a body is not shown."""

    title: str
    body: str
    explanation: str = ""  # one sentence about what is shown
    folded: bool = False  # initially; print shows everything

    @property
    def anchor(self) -> str:
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")

    def __str__(self) -> str:
        if not self.body:
            return ""
        return (
            f"<section><details{'' if self.folded else ' open'}><summary><h2>{escape(self.title)}</h2></summary>"
            f'<div id="{self.anchor}">{note(self.explanation)}{self.body}</div></details></section>'
        )


def page(title: str, subtitle: str, sections: Sequence[Section | str]) -> str:
    shown = [part for part in sections if str(part)]
    links = [f'<a href="#{part.anchor}">{escape(part.title)}</a>' for part in shown if isinstance(part, Section)]
    contents = f'<nav aria-label="Contents">{"".join(links)}</nav>' if len(links) > 2 else ""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">{_policy()}<title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="icon" href="data:,"><style>{_style()}</style></head><body>'
        f"<header>{_STARS}<div><h1>{escape(title)}</h1><p>{escape(subtitle)}</p></div></header>{contents}"
        f"<main>{''.join(map(str, shown))}</main></body></html>\n"
    )


def note(text: str) -> str:
    return f'<p class="note">{escape(text)}</p>' if text else ""


def lead(text: str) -> str:
    """The opening sentence of a page."""
    return f'<p class="lead">{escape(text)}</p>' if text else ""


def heading(text: str) -> str:
    return f"<h3>{escape(text)}</h3>"


def table(header: Sequence[str], rows: Sequence[Sequence[str]], best: Sequence[Collection[int]] = ()) -> str:
    """The first column names the row; the others are numbers or short text. best: cells of each row to highlight."""
    if not rows:
        return ""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    body = "".join(_row(row, stressed) for row, stressed in zip_longest(rows, best, fillvalue=()))
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def facts(values: Mapping[str, str]) -> str:
    """A few large numbers at the top."""
    items = "".join(f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in values.items())
    return f'<dl class="facts">{items}</dl>'


def gallery(columns: Gallery) -> str:
    """One row per image, one named column per kind of picture; with few columns, parts are placed side by side."""
    if not columns:
        return ""
    count = len(next(iter(columns.values())))
    each = -(-count // max(1, _ABREAST // len(columns)))
    parts = "".join(_gallery(columns, range(first, min(first + each, count))) for first in range(0, count, each))
    return f'<div class="galleries columns-{min(len(columns), _MOST_COLUMNS)}">{parts}</div>'


def legend(colors: Mapping[str, tuple[int, int, int]]) -> str:
    """The meaning of the colours in pictures."""
    keys = "".join(
        f'<span class="key"><svg viewBox="0 0 1 1"><rect width="1" height="1" fill="rgb{color}"/></svg>'
        f"{escape(name)}</span>"
        for name, color in colors.items()
    )
    return f'<p class="legend">{keys}</p>' if keys else ""


def tiles(row: Sequence[Tile], size: int = 128) -> str:
    """Pictures side by side, wrapped to the width of the window."""
    assert size in _TILE_SIZES, f"the style sheet has no tiles of {size} pixels"
    shown = "".join(
        f'<figure class="tile-{size}">{thumbnail(tile.picture, tile.caption, size)}'
        f"<figcaption>{escape(tile.caption)}</figcaption></figure>"
        for tile in row
    )
    return f'<div class="tiles">{shown}</div>' if shown else ""


def folded(title: str, body: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{body}</details>" if body else ""


def text(content: str) -> str:
    return f"<pre>{escape(content)}</pre>"


def picture(image: UInt8[Tensor, "3 h w"], label: str, least: int = 160, most: int = 256) -> str:
    """An inline picture. Small ones are enlarged without smoothing, so that their pixels stay visible; large ones are
    reduced."""
    drawn = to_pillow(image)
    factor = -(-least // min(drawn.size))
    if factor > 1:
        drawn = drawn.resize((drawn.width * factor, drawn.height * factor), Image.Resampling.NEAREST)
    elif min(drawn.size) > most:
        share = most / min(drawn.size)
        drawn = drawn.resize((round(drawn.width * share), round(drawn.height * share)), Image.Resampling.LANCZOS)
    return _inline(drawn, label)


def thumbnail(image: UInt8[Tensor, "3 h w"], label: str, size: int) -> str:
    """An inline picture of `size` pixels."""
    drawn = to_pillow(image)
    way = Image.Resampling.LANCZOS if drawn.width > size else Image.Resampling.NEAREST
    return _inline(drawn.resize((size, size), way), label)


def _row(cells: Sequence[str], stressed: Collection[int]) -> str:
    first, *rest = (escape(cell) for cell in cells)
    tags = ('<td class="best">' if place in stressed else "<td>" for place in range(1, len(cells)))
    return f"<tr><th>{first}</th>{''.join(f'{tag}{cell}</td>' for tag, cell in zip(tags, rest, strict=True))}</tr>"


def _gallery(columns: Gallery, rows: range) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join(
        "<tr>"
        + "".join(f"<td>{picture(shown[row], f'{name}, image {row + 1}')}</td>" for name, shown in columns.items())
        + "</tr>"
        for row in rows
    )
    return (
        f'<div class="scroll"><table class="gallery"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _inline(drawn: Image.Image, label: str) -> str:
    """WebP, a tenth of the size of PNG; JPEG if Pillow lacks WebP."""
    kind = "webp" if features.check("webp") else "jpeg"
    buffer = io.BytesIO()
    drawn.save(buffer, format=kind, quality=86)
    data = base64.b64encode(buffer.getvalue()).decode()
    size = f'width="{drawn.width}" height="{drawn.height}"'
    return f'<img src="data:image/{kind};base64,{data}" {size} alt="{escape(label)}" decoding="async">'


@cache
def _style() -> str:
    columns = "".join(f".columns-{count}{{--columns:{count}}}" for count in range(1, _MOST_COLUMNS + 1))
    sizes = "".join(f".tile-{size}{{width:{size}px}}" for size in _TILE_SIZES)
    return (resources.files("asterism.viz") / "page.css").read_text(encoding="utf-8") + columns + sizes


def _policy() -> str:
    digest = base64.b64encode(hashlib.sha256(_style().encode()).digest()).decode()
    rules = f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"
    return f'<meta http-equiv="Content-Security-Policy" content="{rules}"><meta name="referrer" content="no-referrer">'
