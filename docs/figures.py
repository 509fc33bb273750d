"""Finds measured figures that stand in more than one place: `python -m docs.figures`, well under a second.

A figure is a decimal number with a unit, in the README, the pages of this folder, or the comments of recipes and
studies. It stands in one place, and others link to it. Where a copy helps the reader, its paragraph names `results.md`;
then all figures of the paragraph must be on that page, so copies cannot drift apart.

>>> list(problems({"README.md": "48.7 %", "faq.md": "48.7 %", "results.md": ""}))
['48.7 % stands in README.md, faq.md: keep one, and link to it']
>>> list(problems({"README.md": "46.0 % ([results](docs/results.md))", "results.md": "| k-NN | 48.7 |"}))
['README.md: 46.0 % is not on results.md, which the paragraph names']
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
FIGURE = re.compile(r"(?<![\w.,−-])(\d+\.\d+) ?(?:%|×|dB|points?|s|ms|min|[MG]B|images/s)(?!\w)")
_HOME = "results.md"
_FENCE = re.compile(r"^(`{3,})[^\n]*\n.*?^\1[ \t]*$", re.MULTILINE | re.DOTALL)
_PARAGRAPH = re.compile(r"\n\s*\n|\n(?=[|-] ?)|\n(?=# \w+: )")  # or a row, an item, an entry of a recipe's comment


def problems(texts: Mapping[str, str] | None = None) -> Iterator[str]:
    """One sentence per figure that stands in two places, and per copy that differs from its source."""
    texts = texts or read()
    places: dict[str, set[str]] = defaultdict(set)
    for place, text in texts.items():
        for paragraph in _PARAGRAPH.split(text):
            copied = _HOME in paragraph and place != _HOME
            for found in FIGURE.finditer(paragraph):
                if not copied:
                    places[found.group()].add(place)
                elif not re.search(rf"(?<![\d.]){re.escape(found.group(1))}(?!\d)", texts[_HOME]):
                    yield f"{place}: {found.group()} is not on {_HOME}, which the paragraph names"
    for figure, pages in sorted(places.items()):
        if len(pages) > 1:
            yield f"{figure} stands in {', '.join(sorted(pages))}: keep one, and link to it"


def read() -> dict[str, str]:
    """The prose of every page, and the comments of every recipe and study, by place."""
    pages = {path.relative_to(ROOT / "docs").as_posix(): path for path in (ROOT / "docs").rglob("*.md")}
    texts = {place: _FENCE.sub("", path.read_text(encoding="utf-8")) for place, path in pages.items()}
    texts["README.md"] = _FENCE.sub("", (ROOT / "README.md").read_text(encoding="utf-8"))
    for path in sorted((ROOT / "asterism").rglob("*.yaml")):
        lines = path.read_text(encoding="utf-8").splitlines()
        texts[path.relative_to(ROOT).as_posix()] = "\n".join(line for line in lines if line.startswith("#"))
    return texts


if __name__ == "__main__":
    found = list(problems())
    print("\n".join(found) or "figures: each stands in one place")
    sys.exit(bool(found))
