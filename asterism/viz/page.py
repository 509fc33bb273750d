"""One self-contained HTML page: no script, no network, readable on a phone, in the dark and on paper."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from typing import Any

from jaxtyping import UInt8
from PIL import Image
from torch import Tensor


@dataclass(frozen=True)
class Tile:
    """A picture with a few words under it."""

    picture: UInt8[Tensor, "3 h w"]
    caption: str


def page(title: str, subtitle: str, sections: Sequence[str]) -> str:
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="icon" href="data:,"><style>{_style()}</style></head><body>'
        f"<header><h1>{escape(title)}</h1><p>{escape(subtitle)}</p></header>"
        f"<main>{''.join(sections)}</main></body></html>\n"
    )


def section(title: str, body: str, explanation: str = "") -> str:
    return f"<section><h2>{escape(title)}</h2>{note(explanation)}{body}</section>" if body else ""


def note(text: str) -> str:
    return f'<p class="note">{escape(text)}</p>' if text else ""


def heading(text: str) -> str:
    return f"<h3>{escape(text)}</h3>"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The first column names the row; the others are numbers or short text."""
    if not rows:
        return ""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    body = "".join(
        "<tr>" + f"<th>{escape(row[0])}</th>" + "".join(f"<td>{escape(cell)}</td>" for cell in row[1:]) + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def facts(values: Mapping[str, str]) -> str:
    """A few large numbers at the top."""
    items = "".join(f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in values.items())
    return f'<dl class="facts">{items}</dl>'


def gallery(columns: Mapping[str, UInt8[Tensor, "b 3 h w"]]) -> str:
    """One row per image, one named column per kind of picture."""
    names = list(columns)
    if not names:
        return ""
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    count = len(columns[names[0]])
    rows = "".join(
        "<tr>" + "".join(f"<td>{picture(columns[name][i], name)}</td>" for name in names) + "</tr>"
        for i in range(count)
    )
    return (
        f'<div class="scroll"><table class="gallery"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
    )


def tiles(row: Sequence[Tile], size: int = 128) -> str:
    """Pictures side by side, in as many lines as the window needs."""
    shown = "".join(
        f'<figure style="width: {size}px">{thumbnail(tile.picture, tile.caption, size)}'
        f"<figcaption>{escape(tile.caption)}</figcaption></figure>"
        for tile in row
    )
    return f'<div class="tiles">{shown}</div>' if shown else ""


def details(title: str, text: str) -> str:
    return f"<details><summary>{escape(title)}</summary><pre>{escape(text)}</pre></details>"


def picture(image: UInt8[Tensor, "3 h w"], label: str, least: int = 128) -> str:
    """An inline PNG; small pictures are enlarged cell by cell so that they are seen as they are."""
    drawn = Image.fromarray(image.permute(1, 2, 0).cpu().contiguous().numpy())
    factor = -(-least // min(drawn.size))
    if factor > 1:
        drawn = drawn.resize((drawn.width * factor, drawn.height * factor), Image.Resampling.NEAREST)
    return _inline(drawn, label, "png", optimize=True)


def thumbnail(image: UInt8[Tensor, "3 h w"], label: str, size: int) -> str:
    """An inline JPEG of `size` pixels, for pages with hundreds of pictures; lossless ones take minutes to open."""
    drawn = Image.fromarray(image.permute(1, 2, 0).cpu().contiguous().numpy())
    way = Image.Resampling.LANCZOS if drawn.width > size else Image.Resampling.NEAREST
    return _inline(drawn.resize((size, size), way), label, "jpeg", quality=88, subsampling=0)


def _inline(drawn: Image.Image, label: str, kind: str, **settings: Any) -> str:
    buffer = io.BytesIO()
    drawn.save(buffer, format=kind, **settings)
    data = base64.b64encode(buffer.getvalue()).decode()
    size = f'width="{drawn.width}" height="{drawn.height}"'
    return f'<img src="data:image/{kind};base64,{data}" {size} alt="{escape(label)}">'


def _style() -> str:
    return (resources.files("asterism.viz") / "page.css").read_text(encoding="utf-8")
