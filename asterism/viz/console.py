"""The terminal, for text that may contain anything: names of files and runs are printed as they are.

Only control characters are not: a name could otherwise clear the screen, change what was printed before, or set the
terminal's title.
"""

from __future__ import annotations

import re
from typing import Any

from rich.console import Console

# All but tab and line feed; and those that change the direction of text.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def say(text: object) -> None:
    """Print a line."""
    print(visible(text))


def warn(message: str, style: str = "yellow") -> None:
    """Print a line on stderr."""
    plain_console(stderr=True, soft_wrap=True).print(message, style=style)


def visible(text: object) -> str:
    r"""The text with control characters as they would be written in Python, for example `\x1b`."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), str(text))


def one_line(name: str) -> str:
    r"""A name as a picture shows it: also with line breaks, as `\n`, and bytes that are not text, as `\udce9`."""
    return visible(name).replace("\n", r"\n").encode("utf-8", "backslashreplace").decode()


class _PlainConsole(Console):
    def print(self, *objects: Any, **how: Any) -> None:
        super().print(*(visible(each) if isinstance(each, str) else each for each in objects), **how)


def plain_console(*, stderr: bool = False, soft_wrap: bool = False) -> Console:
    """A console that does not interpret `[red]` or `:cat:`, shows control characters and does not colour numbers."""
    return _PlainConsole(stderr=stderr, markup=False, emoji=False, highlight=False, soft_wrap=soft_wrap)
