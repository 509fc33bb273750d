"""The report's pictures of a few images, for experiment trackers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from asterism.reports.pictures import (
    Look,
    Shown,
    attention,
    components,
    concept_places,
    likeness,
    neighbours,
    open_look,
    reconstruction,
)
from asterism.train.recipe import Recipe
from asterism.train.run import Run
from asterism.viz.page import Gallery

_NEIGHBOURS = 4


def example_pictures(run: Run) -> dict[str, Gallery]:
    """Galleries by title, of the run's last weights and its own data."""
    look = open_look(run, Recipe.parse(run.config))
    kinds: dict[str, Callable[[Look], Shown | None]] = {
        "components of the patches": components,
        "attention": attention,
        "similarity to the middle": likeness,
        "concepts": concept_places,
        "reconstructions": reconstruction,
        "nearest images": partial(neighbours, count=_NEIGHBOURS),
    }
    shown = {title: draw(look) for title, draw in kinds.items()}
    return {title: found.columns for title, found in shown.items() if found is not None}
