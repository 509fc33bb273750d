"""Greet somebody."""

from __future__ import annotations


def greet(name: str) -> str:
    """Greet somebody."""
    return f"Hello, {name}"
