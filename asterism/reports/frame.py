"""What the pages about all kinds of runs have in common: title, verdict, scores, curves, and how the run was made."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from asterism.config import Config, write_yaml
from asterism.evals.result import read_results
from asterism.reports.scores import measured_at, scores
from asterism.train.run import Run
from asterism.viz import charts, page
from asterism.viz.page import Section

Records = Sequence[Mapping[str, Any]]

_CURVES = {
    "Loss": ("loss",),
    "Online k-NN accuracy (%)": ("knn",),
    "Share of images recognised in another view (%)": ("view_retrieval",),
    "Entropy of targets and predictions (nats)": ("target_entropy", "prediction_entropy"),
    "Spread of the features": ("feature_std",),
    "Effective rank of the features": ("effective_rank",),
    "Bootstrapping ratio": ("bootstrapping_ratio",),
}
_HINTS = {
    "feature_std": "Near 0 all images have the same features (collapse); it should not keep falling.",
    "effective_rank": "How many directions the features use. Below half of its start, they are losing information.",
    "target_entropy": "Near 0 all targets are the same prototype; near its maximum they carry no information.",
    "knn": "On held-out training images, with labels used for this curve only.",
}
_MORE_CURVES = {
    "Gradient norm": ("gradient_norm",),
    "Learning rate": ("lr",),
    "Images per second": ("images_per_second",),
    "Share of time waiting for data": ("data_wait_share",),
}
_TERM = "loss/"  # how the terms of a loss are logged
_HELD_OUT, _SHOWN_HELD_OUT = "held_out/", 3  # how values on held-out images are logged; how many are not folded
_NO_CURVE = {"step", "epoch", "seconds", "knn_pixels", "view_retrieval_pixels", "knn_start", "view_retrieval_start"}


def curves(metrics: Mapping[str, Records]) -> str:
    """The curves that show whether training goes well; terms of the loss and all other logged values are folded."""
    logged = list(dict.fromkeys(key for records in metrics.values() for record in records for key in record))
    terms = {key.removeprefix(_TERM).replace("_", " "): (key,) for key in logged if key.startswith(_TERM)}
    measured = [key for key in logged if key.startswith(_HELD_OUT)][:_SHOWN_HELD_OUT]
    held_out = {f"{key.removeprefix(_HELD_OUT).replace('_', ' ')} on held-out images": (key,) for key in measured}
    shown = _CURVES | held_out
    named = {key for keys in (*shown.values(), *_MORE_CURVES.values(), *terms.values()) for key in keys}
    more = _MORE_CURVES | {key.replace("_", " "): (key,) for key in logged if key not in named | _NO_CURVE}
    single_terms = page.folded("Terms of the loss", _charts(terms, metrics)) if len(terms) > 1 else ""
    return _charts(shown, metrics) + single_terms + page.folded("More curves", _charts(more, metrics))


def _charts(shown: Mapping[str, Sequence[str]], metrics: Mapping[str, Records]) -> str:
    drawn = []
    for title, keys in shown.items():
        series = {
            " ".join(filter(None, (name, key if len(keys) > 1 else ""))): points
            for name, records in metrics.items()
            for key in keys
            if (points := [(r["step"], r[key]) for r in records if isinstance(r.get(key), int | float)])
        }
        drawn.append(
            charts.line_chart(title, series, hint=_HINTS.get(keys[0], ""), reference=_reference(keys[0], metrics))
        )
    return f'<div class="charts">{"".join(drawn)}</div>' if any(drawn) else ""


def _reference(key: str, metrics: Mapping[str, Records]) -> tuple[str, float] | None:
    """The level of raw pixels, where it was measured."""
    levels = [r[f"{key}_pixels"] for records in metrics.values() for r in records if f"{key}_pixels" in r]
    return ("raw pixels", levels[0]) if levels else None


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
