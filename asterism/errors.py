"""Errors that a user can mend. The command line prints them without a traceback and exits with code 2."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake in what the user gave us: names the value, what is allowed, and the fix."""


class MissingExtra(UserError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"this needs the package {package!r}: pip install 'asterism[{extra}]'")


def unknown(kind: str, value: str, allowed: Iterable[str]) -> UserError:
    """The error for a name that does not exist, with the nearest names that do."""
    names = sorted(allowed)
    near = difflib.get_close_matches(value, names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(repr(n) for n in near)}?" if near else f"choose from: {', '.join(names)}"
    return UserError(f"unknown {kind} {value!r}; {hint}")
