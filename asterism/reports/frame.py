"""What the pages about all kinds of runs have in common: title, verdict, scores, curves, and how the run was made."""

from __future__ import annotations

import json
from collections.abc import Sequence

from asterism.config import Config, write_yaml
from asterism.evals.result import read_results
from asterism.reports.curves import curves
from asterism.reports.scores import measured_at, scores
from asterism.train.run import Run
from asterism.viz import page
from asterism.viz.page import Section


def framed(
    run: Run, recipe: Config, about: str, lead: str, pictures: Sequence[Section], glance: Sequence[Section] = ()
) -> str:
    """The whole page; `glance` comes before the scores, `pictures` after the curves."""
    results = read_results(run.path / "eval")
    return page.page(
        run.path.resolve().name,
        about,
        [
            page.lead(lead),
            *glance,
            Section("Scores", scores(results), measured_at(results)),
            Section("Training", curves({"": run.metrics()}), "Over optimiser steps; the number is the last value."),
            *pictures,
            Section("How it was made", _provenance(run, recipe), "All settings, and what the run ran on.", folded=True),
        ],
    )


def _provenance(run: Run, recipe: Config) -> str:
    settings = page.heading("config.yaml") + page.text(write_yaml(recipe))
    if run.environment is None:
        return settings
    return settings + page.heading("environment.json") + page.text(json.dumps(run.environment, indent=2))
