"""Forty small scenes."""

from __future__ import annotations

from asterism.data import Source, open_source


def open_few_scenes(split: str | None) -> Source:
    """The source of a part."""
    return open_source("scenes:size=16,count=40", split)
