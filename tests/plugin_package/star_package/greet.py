"""Greet somebody."""

from __future__ import annotations

from typing import Annotated

import typer


def greet(name: Annotated[str, typer.Argument(help="Who is greeted.")]) -> str:
    """Greet somebody."""
    return f"Hello, {name}"
