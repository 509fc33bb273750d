"""Equations on the site: a fence of kind `equation` becomes lines of HTML.

An equation is written with the Unicode symbols of the code's docstrings, and _{…} and ^{…} for what has no symbol. So
it can be searched, copied and read aloud, looks the same in a plain viewer, and needs neither a script nor a font from
elsewhere. A number in brackets at the end of a line, `(5)`, is that of the paper.

>>> print(formatted("L = softmax_{r}(u/t)   (5)"))
<div class="equation"><p><span>L = softmax<sub>r</sub>(u/t)</span><span class="number">(5)</span></p></div>
"""

from __future__ import annotations

import re
from html import escape
from typing import Any

_NUMBER = re.compile(r"\s{2,}(\([^()]*\))$")  # set off by at least two spaces
_SCRIPTS = ((re.compile(r"_\{([^{}]*)\}"), r"<sub>\1</sub>"), (re.compile(r"\^\{([^{}]*)\}"), r"<sup>\1</sup>"))


def formatted(source: str, *_arguments: Any, **_options: Any) -> str:
    """The HTML of an equation, one paragraph per line. Called by pymdownx.superfences, whose details do not matter."""
    return f'<div class="equation">{"".join(map(_line, filter(None, map(str.rstrip, source.splitlines()))))}</div>'


def _line(text: str) -> str:
    number = _NUMBER.search(text)
    body = escape(text[: number.start()] if number else text, quote=False)
    for pattern, html in _SCRIPTS:
        body = pattern.sub(html, body)
    margin = f'<span class="number">{escape(number.group(1))}</span>' if number else ""
    return f"<p><span>{body.strip()}</span>{margin}</p>"
