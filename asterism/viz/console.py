"""The terminal, for text that may contain anything: names of files and runs are printed as they are."""

from __future__ import annotations

from rich.console import Console


def plain_console(*, stderr: bool = False, soft_wrap: bool = False) -> Console:
    """A console that does not interpret `[red]` or `:cat:` and does not colour numbers."""
    return Console(stderr=stderr, markup=False, emoji=False, highlight=False, soft_wrap=soft_wrap)
