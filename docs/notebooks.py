"""Notebooks from tutorials: text becomes Markdown cells, code blocks become cells that run.

`python -m docs.notebooks FOLDER` writes one per tutorial; the site has them too. They are never committed: the tutorial
is the source.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
TUTORIALS = (
    "tutorials/own-images.md",
    "tutorials/few-labels.md",
    "tutorials/video.md",
    "adapt.md",
    "tutorials/finetune.md",
    "tutorials/segmenter.md",
    "tutorials/detector.md",
    "tutorials/concepts.md",
    "tutorials/add-a-method.md",
    "own-loop.md",
)
_BLOCK = re.compile(r"^```(\w*)(?:[^\n`]*)\n(.*?)^```[ \t]*\n?", re.MULTILINE | re.DOTALL)
_FRONT_MATTER = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)
_PAGE = re.compile(r"\]\((?!https?:|#)([^)\s]+)\.md(#[^)\s]*)?\)")


def notebook(markdown: str) -> dict[str, Any]:
    """The tutorial as a notebook of format 4.5. Commands of the shell are cells of bash, other blocks stay text."""
    text, cells, start = _FRONT_MATTER.sub("", markdown), [], 0
    for block in _BLOCK.finditer(text):
        kind, code = block.group(1), block.group(2).rstrip("\n")
        if kind == "bash" or (not kind and code.startswith("asterism ")):
            code = "%%bash\n" + code
        elif kind != "python":
            continue
        cells += [_cell("markdown", text[start : block.start()]), _cell("code", code)]
        start = block.end()
    cells.append(_cell("markdown", text[start:]))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {
        "cells": [_named(number, cell) for number, cell in enumerate(filter(None, cells))],
        "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def _cell(kind: str, text: str) -> dict[str, Any] | None:
    if not text.strip():
        return None
    if kind == "markdown":
        return {"cell_type": kind, "metadata": {}, "source": _PAGE.sub(r"](\1.html\2)", text.strip())}
    return {"cell_type": kind, "metadata": {}, "source": text, "execution_count": None, "outputs": []}


def _named(number: int, cell: dict[str, Any]) -> dict[str, Any]:
    """With the identifier that the format requires: a function of place and content, so that builds are repeatable."""
    return {"id": hashlib.sha256(f"{number} {cell['source']}".encode()).hexdigest()[:12], **cell}


def main(folder: Path) -> None:
    """Write the notebook of every tutorial."""
    folder.mkdir(parents=True, exist_ok=True)
    for place in TUTORIALS:
        made = notebook((DOCS / place).read_text(encoding="utf-8"))
        path = folder / f"{Path(place).stem}.ipynb"
        path.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(path)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m docs.notebooks FOLDER")
    main(Path(sys.argv[1]))
