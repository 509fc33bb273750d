"""One self-contained page about a run, or about several side by side: scores, curves, and what the features see."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from asterism.errors import UserError
from asterism.evals.result import Result, read_results
from asterism.files import write_text
from asterism.finetuning.run import FinetunedRun
from asterism.reports.finetuned import finetuned_page
from asterism.reports.frame import curves, framed
from asterism.reports.scores import compared_scores, main_scores
from asterism.reports.sections import compared_sections, run_sections
from asterism.train.kind import kind_of
from asterism.train.online_quality import verdict as training_verdict
from asterism.train.recipe import Recipe
from asterism.train.run import Run, is_finetuned, is_pretrained, open_run
from asterism.train.units import duration
from asterism.viz import page
from asterism.viz.page import Section

_NEIGHBOURS = re.compile(r"top1_k(\d+)")  # the first of its values is that of the card and of the sentence
_CLEAR = 1.0  # points of accuracy; a smaller difference is not a lead
_NAMES = {"untrained": "the untrained network", "pixels": "raw pixels"}


def write_report(paths: Sequence[Path]) -> Path:
    """Write `report.html` into the run's folder; a comparison goes next to the first run, named after all of them."""
    if not paths:
        raise UserError("name at least one run folder")
    runs = [open_run(path) for path in paths]
    if len(runs) == 1:
        target, text = runs[0].path / "report.html", _single(runs[0])
    else:
        names = _names(runs)
        target = runs[0].path.parent / f"report-{'-'.join(name.replace('/', '_') for name in names)}.html"
        text = _comparison(dict(zip(names, runs, strict=True)))
    open_run(runs[0].path)  # it may have been moved meanwhile, and its old place must not become a folder again
    write_text(target, text)
    return target


def _single(run: Run) -> str:
    if is_finetuned(run.path):
        return finetuned_page(FinetunedRun(run.path))
    if not is_pretrained(run.path):
        return _page_of_another_kind(run)
    recipe, metrics, results = run.recipe, run.metrics(), read_results(run.path / "eval")
    return framed(
        run,
        recipe,
        f"{recipe.method.name}, {_network(run, recipe)}, on {recipe.data.path}",
        verdict(results, metrics),
        run_sections(run, recipe),
        [Section("At a glance", page.facts(_glance(recipe, metrics, results)))],
    )


def _page_of_another_kind(run: Run) -> str:
    kind = kind_of(run.path)
    if kind.page is None:
        raise UserError(f"{run.path} is a run of `asterism {kind.name}`, of which there are no reports")
    return kind.page(kind.open_run(run.path))


def _comparison(runs: Mapping[str, Run]) -> str:
    recipes = {name: run.recipe for name, run in runs.items()}
    metrics = {name: run.metrics() for name, run in runs.items()}
    first = next(iter(recipes.values()))
    return page.page(
        " · ".join(runs),
        f"{len(runs)} runs side by side",
        [
            Section("At a glance", _glances(runs, recipes, metrics)),
            Section(
                "Scores",
                compared_scores({name: read_results(run.path / "eval") for name, run in runs.items()}),
                "The best of each row is bold.",
            ),
            Section("Training", curves(metrics), "Over optimiser steps; the number is the last value."),
            *compared_sections(runs, first),
            Section(
                "What differs",
                _differences({name: _flat(run.config) for name, run in runs.items()}),
                "Settings that are not equal in all runs.",
            ),
        ],
    )


def _network(run: Run, recipe: Recipe) -> str:
    """What was trained, for example "0.7 M parameters, 64 px, patch 8"."""
    try:
        encoder = run.encoder()
    except UserError:  # there is no checkpoint yet
        return f"{recipe.backbone.name}, {recipe.backbone.image_size} px"
    parameters = sum(parameter.numel() for parameter in encoder.backbone.parameters())
    return f"{parameters / 1e6:.1f} M parameters, {encoder.image_size} px, patch {encoder.patch_size}"


def _glance(recipe: Recipe, metrics: Sequence[Mapping[str, Any]], results: Sequence[Result]) -> dict[str, str]:
    shown = {"steps": _steps(recipe, metrics), "images in a batch": f"{recipe.trainer.batch_size:,}"}
    if (seconds := _seconds(recipe, metrics)) is not None:
        shown["training time"] = duration(seconds)
    shown |= main_scores(results)
    online = [record["knn"] for record in metrics if "knn" in record]
    if online and recipe.monitor.knn is not None:
        shown[f"online k-NN, k = {recipe.monitor.knn.k}"] = f"{online[-1]:.1f} %"
    return shown


def _seconds(recipe: Recipe, metrics: Sequence[Mapping[str, Any]]) -> float | None:
    """The time that the run took, interruptions aside; of runs that did not log it, that of their steps alone."""
    if any("seconds" in record for record in metrics):
        return sum(record.get("seconds", 0.0) for record in metrics)
    timed = [record for record in metrics if record.get("images_per_second")]
    if not timed or not isinstance(recipe.trainer.batch_size, int):
        return None
    steps = [0, *(record["step"] for record in timed)]
    speeds = [record["images_per_second"] for record in timed]
    return sum(
        (after - before) * recipe.trainer.batch_size / speed
        for before, after, speed in zip(steps[:-1], steps[1:], speeds, strict=True)
    )


def _glances(
    runs: Mapping[str, Run], recipes: Mapping[str, Recipe], metrics: Mapping[str, Sequence[Mapping[str, Any]]]
) -> str:
    rows = {
        "method": [recipe.method.name for recipe in recipes.values()],
        "network": [_network(runs[name], recipe) for name, recipe in recipes.items()],
        "data": [recipe.data.path for recipe in recipes.values()],
        "steps": [_steps(recipe, metrics[name]) for name, recipe in recipes.items()],
        "images in a batch": [f"{recipe.trainer.batch_size:,}" for recipe in recipes.values()],
    }
    return page.table(["", *recipes], [[name, *cells] for name, cells in rows.items()])


def _steps(recipe: Recipe, metrics: Sequence[Mapping[str, Any]]) -> str:
    done = metrics[-1]["step"] if metrics else 0
    planned = recipe.trainer.steps or 0
    return f"{done:,}" if planned in (0, done) else f"{done:,} of {planned:,}"


def _differences(settings: Mapping[str, Mapping[str, object]]) -> str:
    keys = sorted({key for flat in settings.values() for key in flat})
    rows = [[key, *(str(flat.get(key, "–")) for flat in settings.values())] for key in keys]
    return page.table(["setting", *settings], [row for row in rows if len(set(row[1:])) > 1])


def _names(runs: Sequence[Run]) -> list[str]:
    """Folder names; longer paths where two runs share one."""
    short = [run.path.resolve().name for run in runs]
    return short if len(set(short)) == len(short) else [str(run.path) for run in runs]


def _flat(values: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    flat: dict[str, object] = {}
    for key, value in values.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def verdict(results: Sequence[Result], metrics: Sequence[Mapping[str, Any]]) -> str:
    """From k-NN on held-out images with its baselines, where they were measured, else from what training logged."""
    classified = next((result for result in results if _is_compared(result)), None)
    if classified is None:
        return training_verdict(metrics) or ""
    return f"{_classification(classified)}{_reconstruction(results)}."


def _is_compared(result: Result) -> bool:
    first = next(iter(result.values))
    others = result.baselines.values()
    return _NEIGHBOURS.fullmatch(first) is not None and bool(others) and all(first in each for each in others)


def _classification(result: Result) -> str:
    name, own = next(iter(result.values.items()))
    others = {_NAMES.get(other, other): values[name] for other, values in result.baselines.items()}
    ahead = all(own > value + _CLEAR for name, value in others.items() if name in _NAMES.values())
    opening = "Learned without labels" if ahead else "Not ahead of everything it was compared with"
    compared = " and ".join(f"{value:.1f} % with {other}" for other, value in others.items())
    count = name.removeprefix("top1_k")
    return (
        f"{opening}: the {count} nearest neighbours name the class of {own:.1f} % of {result.test.images:,} held-out "
        f"images, against {compared}"
    )


def _reconstruction(results: Sequence[Result]) -> str:
    rebuilt = next((result for result in results if "psnr" in result.values), None)
    return "" if rebuilt is None else f"; images rebuilt from its concepts alone reach {rebuilt.values['psnr']:.1f} dB"
