"""Examples in docstrings, which are tested, become code blocks in the reference."""

from __future__ import annotations

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"(?:^>>> .*\n?)(?:^(?!\s*$).*\n?)*", re.MULTILINE)  # up to the next empty line
_VERBATIM = re.compile(r"```.*?```|`[^`\n]*`|^ {4,}.*$", re.MULTILINE | re.DOTALL)


def as_markdown(text: str) -> str:
    """The text with a fence around every run of `>>>` lines and what they print, and `<name>` as it is written.

    >>> as_markdown("In runs/<name>.\\n\\n>>> 1 < 2\\nTrue")
    'In runs/&lt;name>.\\n\\n```pycon\\n>>> 1 < 2\\nTrue\\n```\\n'
    """
    fenced = _EXAMPLE.sub(lambda found: f"```pycon\n{found.group().rstrip()}\n```\n", text)
    kept, start = [], 0
    for code in _VERBATIM.finditer(fenced):
        kept += [fenced[start : code.start()].replace("<", "&lt;"), code.group()]
        start = code.end()
    return "".join(kept) + fenced[start:].replace("<", "&lt;")


class Doctests(griffe.Extension):
    """Called by mkdocstrings for every object that it reads."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)
