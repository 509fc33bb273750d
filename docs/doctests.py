"""Examples in docstrings, which are tested, become code blocks in the reference."""

from __future__ import annotations

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"(?:^>>> .*\n?)(?:^(?!\s*$).*\n?)*", re.MULTILINE)  # up to the next empty line


def fenced(text: str) -> str:
    """The text, with a fence around every run of `>>>` lines and what they print.

    >>> fenced("Adds.\\n\\n>>> 1 + 1\\n2")
    'Adds.\\n\\n```pycon\\n>>> 1 + 1\\n2\\n```\\n'
    """
    return _EXAMPLE.sub(lambda found: f"```pycon\n{found.group().rstrip()}\n```\n", text)


class Doctests(griffe.Extension):
    """Called by mkdocstrings for every object that it reads."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
