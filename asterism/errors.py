"""Errors that a user can fix. The command line prints them without a traceback and exits with code 2."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake in the user's input: the message names the value, what is allowed, and the fix."""


class MissingExtra(UserError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"this needs the package {package!r}: pip install 'asterism[{extra}]'")


def unknown(kind: str, value: str, allowed: Iterable[str]) -> UserError:
    """The error for an unknown name, with the nearest known names."""
    names = {name.rpartition(".")[2]: name for name in sorted(allowed)}  # a common prefix would make all names similar
    near = difflib.get_close_matches(value.rpartition(".")[2], names, n=3, cutoff=0.6)
    if near:
        hint = f"did you mean {' or '.join(repr(names[name]) for name in near)}?"
    else:
        hint = f"choose from: {', '.join(names.values())}"
    return UserError(f"unknown {kind} {value!r}; {hint}")


class Interrupted(Exception):
    """Training stopped on request and saved its state; `exit_code` follows the shell's convention, 128 + signal."""

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal_number
