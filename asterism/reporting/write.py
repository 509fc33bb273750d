"""One self-contained page about a run, or about several side by side: scores, curves, and what the features see."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from asterism.config import write_yaml
from asterism.errors import UserError
from asterism.evals.result import Result, read_results
from asterism.files import write_text
from asterism.reporting.sections import compared_sections, run_sections
from asterism.reporting.verdict import verdict
from asterism.train.recipe import Recipe
from asterism.train.run import Run, open_run
from asterism.viz import charts, page
from asterism.viz.page import Section

_CURVES = {
    "Loss": ("loss",),
    "Online k-NN accuracy (%)": ("knn",),
    "Entropy of targets and predictions (nats)": ("target_entropy", "prediction_entropy"),
    "Spread of the features": ("feature_std",),
    "Effective rank of the features": ("effective_rank",),
    "Bootstrapping ratio": ("bootstrapping_ratio",),
}
_MORE_CURVES = {
    "Gradient norm": ("gradient_norm",),
    "Learning rate": ("lr",),
    "Images per second": ("images_per_second",),
    "Share of time waiting for data": ("data_wait_share",),
}
_TERM = "loss/"  # how the terms of a loss are logged
_NO_CURVE = {"step", "epoch"}
_SMALLER_IS_BETTER = ("fid", "frechet", "gap", "unreadable")  # in names of values
_NEITHER_IS_BETTER = ("chosen", "images", "first_mask_kept")


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
    write_text(target, text)
    return target


def _single(run: Run) -> str:
    recipe, metrics, results = run.recipe, run.metrics(), read_results(run.path / "eval")
    return page.page(
        run.path.resolve().name,
        f"{recipe.method.name} with {recipe.backbone.name} on {recipe.data.path}",
        [
            page.lead(verdict(results, metrics)),
            Section("At a glance", page.facts(_glance(recipe, metrics, results))),
            Section("Scores", _scores(results), _measured_at(results)),
            Section("Training", _curves({"": metrics}), "Over optimiser steps; the number is the last value."),
            *run_sections(run, recipe),
            Section("How it was made", _provenance(run, recipe), "All settings, and what the run ran on.", folded=True),
        ],
    )


def _comparison(runs: Mapping[str, Run]) -> str:
    recipes = {name: run.recipe for name, run in runs.items()}
    metrics = {name: run.metrics() for name, run in runs.items()}
    first = next(iter(recipes.values()))
    return page.page(
        " · ".join(runs),
        f"{len(runs)} runs side by side",
        [
            Section("At a glance", _glances(recipes, metrics)),
            Section("Scores", _score_comparison(runs), "The best of each row is bold."),
            Section("Training", _curves(metrics), "Over optimiser steps; the number is the last value."),
            *compared_sections(runs, first),
            Section(
                "What differs",
                _differences({name: _flat(run.config) for name, run in runs.items()}),
                "Settings that are not equal in all runs.",
            ),
        ],
    )


def _glance(recipe: Recipe, metrics: Sequence[Mapping[str, Any]], results: Sequence[Result]) -> dict[str, str]:
    shown = {"steps": _steps(recipe, metrics), "images in a batch": f"{recipe.trainer.batch_size:,}"}
    for result in results:
        name, value = next(iter(result.values.items()))
        shown[f"{result.protocol}, {result.test.name}: {name}"] = f"{value:.1f}"
    online = [record["knn"] for record in metrics if "knn" in record]
    if online:
        shown["online k-NN"] = f"{online[-1]:.1f} %"
    return shown


def _glances(recipes: Mapping[str, Recipe], metrics: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    rows = {
        "method": [recipe.method.name for recipe in recipes.values()],
        "backbone": [recipe.backbone.name for recipe in recipes.values()],
        "data": [recipe.data.path for recipe in recipes.values()],
        "steps": [_steps(recipe, metrics[name]) for name, recipe in recipes.items()],
        "images in a batch": [f"{recipe.trainer.batch_size:,}" for recipe in recipes.values()],
    }
    return page.table(["", *recipes], [[name, *cells] for name, cells in rows.items()])


def _steps(recipe: Recipe, metrics: Sequence[Mapping[str, Any]]) -> str:
    done = metrics[-1]["step"] if metrics else 0
    planned = recipe.trainer.steps or 0
    return f"{done:,}" if planned in (0, done) else f"{done:,} of {planned:,}"


def _measured_at(results: Sequence[Result]) -> str:
    steps = sorted({result.model.step for result in results if result.model.step is not None})
    when = f"Measured at step {', '.join(f'{step:,}' for step in steps)}. " if steps else ""
    return f"{when}Baselines, if measured: an untrained network of the same shape, and raw pixels."


def _scores(results: Sequence[Result]) -> str:
    """The first value of every protocol on every data set; below, folded, all values."""
    columns = list(dict.fromkeys(name for result in results for name in result.baselines))
    rows = []
    for result in results:
        name, value = next(iter(result.values.items()))
        others = [_number(result.baselines.get(column, {}).get(name)) for column in columns]
        rows.append([f"{result.protocol}, {name}", _data(result), _number(value), *others])
    return page.table(["", "data", "this run", *columns], rows) + page.folded(
        "All values", "".join(_all_values(result) for result in results)
    )


def _all_values(result: Result) -> str:
    columns = {"this run": result.values, **result.baselines}
    rows = [[name, *(_number(values.get(name)) for values in columns.values())] for name in result.values]
    notes = "".join(page.note(note) for note in result.notes)
    return page.heading(f"{result.protocol}, {_data(result)}") + notes + page.table(["", *columns], rows)


def _score_comparison(runs: Mapping[str, Run]) -> str:
    """A row for every value that was measured on the same images; first values first, all of them folded."""
    values: dict[tuple[str, str, str], dict[str, float]] = {}
    data: dict[str, str] = {}
    heads = []
    for run_name, run in runs.items():
        for result in read_results(run.path / "eval"):
            data[result.test.fingerprint] = _data(result)
            heads.append((result.protocol, next(iter(result.values)), result.test.fingerprint))
            for name, value in result.values.items():
                values.setdefault((result.protocol, name, result.test.fingerprint), {})[run_name] = value

    def table(keys: Iterable[tuple[str, str, str]]) -> str:
        rows, best = [], []
        for protocol, name, fingerprint in dict.fromkeys(keys):
            scores = [values[protocol, name, fingerprint].get(run) for run in runs]
            rows.append([f"{protocol}, {name}", data[fingerprint], *map(_number, scores)])
            best.append({place + 2 for place in _best(name, scores)})
        return page.table(["", "data", *runs], rows, best)

    return table(heads) + page.folded("All values", table(values))


def _best(name: str, scores: Sequence[float | None]) -> list[int]:
    """Places of the best scores; none where there is nothing to compare."""
    known = [score for score in scores if score is not None]
    if len(known) < 2 or any(word in name for word in _NEITHER_IS_BETTER):
        return []
    best = min(known) if any(word in name for word in _SMALLER_IS_BETTER) else max(known)
    return [place for place, score in enumerate(scores) if score == best]


def _curves(metrics: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """The curves that show whether training goes well; all other logged values are folded."""
    logged = list(dict.fromkeys(key for records in metrics.values() for record in records for key in record))
    terms = tuple(key for key in logged if key.startswith(_TERM))
    alone = {"Terms of the loss": terms} if len(metrics) == 1 and len(terms) > 1 else {}
    known = {key for keys in (*_CURVES.values(), *_MORE_CURVES.values(), terms) for key in keys} | _NO_CURVE
    more = _MORE_CURVES | {key.replace("_", " "): (key,) for key in logged if key not in known}
    return _charts(_CURVES | alone, metrics) + page.folded("More curves", _charts(more, metrics))


def _charts(curves: Mapping[str, Sequence[str]], metrics: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    drawn = []
    for title, keys in curves.items():
        series = {
            " ".join(filter(None, (name, key.removeprefix(_TERM) if len(keys) > 1 else ""))): points
            for name, records in metrics.items()
            for key in keys
            if (points := [(r["step"], r[key]) for r in records if isinstance(r.get(key), int | float)])
        }
        drawn.append(charts.line_chart(title, series))
    return f'<div class="charts">{"".join(drawn)}</div>' if any(drawn) else ""


def _differences(settings: Mapping[str, Mapping[str, object]]) -> str:
    keys = sorted({key for flat in settings.values() for key in flat})
    rows = [[key, *(str(flat.get(key, "–")) for flat in settings.values())] for key in keys]
    return page.table(["setting", *settings], [row for row in rows if len(set(row[1:])) > 1])


def _provenance(run: Run, recipe: Recipe) -> str:
    known = "" if run.environment is None else json.dumps(run.environment, indent=2)
    return (
        page.heading("config.yaml")
        + page.text(write_yaml(recipe))
        + (page.heading("environment.json") + page.text(known) if known else "")
    )


def _names(runs: Sequence[Run]) -> list[str]:
    """Folder names; longer paths where two runs share one."""
    short = [run.path.resolve().name for run in runs]
    return short if len(set(short)) == len(short) else [str(run.path) for run in runs]


def _flat(values: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    flat: dict[str, object] = {}
    for key, value in values.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def _data(result: Result) -> str:
    return f"{result.test.images:,} images of {result.test.name}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
