"""Tables for spreadsheets, which run a cell that begins like a formula: no name may become a program there."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence

_FORMULA = tuple("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")  # the last four: full-width, which some spreadsheets accept


def comma_separated(rows: Iterable[Sequence[object]]) -> str:
    """One line per row; a text that begins like a formula begins with ' instead."""
    return "".join(map(_line, rows))


def _line(row: Sequence[object]) -> str:
    text = io.StringIO()
    csv.writer(text).writerow([_cell(value) for value in row])  # ends in \r\n; with \n alone, it quotes no \r in a name
    return text.getvalue().removesuffix("\r\n") + "\n"


def _cell(value: object) -> object:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) and not _is_number(value) else value


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
