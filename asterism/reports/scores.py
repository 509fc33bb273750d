"""The scores of a run, and of several, as tables in words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from asterism.evals.result import Result
from asterism.viz import page

_SMALLER_IS_BETTER = ("fid", "frechet", "gap", "unreadable")  # in names of values
_NEITHER_IS_BETTER = ("chosen", "images", "first_mask_kept")

_PROTOCOLS = {
    "knn": "k-NN",
    "linear": "linear probe",
    "linear-sparse": "linear probe on concepts",
    "retrieval": "retrieval",
    "bbox-knn": "k-NN of boxes",
    "dense-nn": "nearest-patch segmentation",
    "linear-seg": "linear segmentation",
    "reconstruction": "reconstruction",
    "video": "video segmentation",
    "backgrounds": "backgrounds",
    "equivariance": "equivariance",
    "concept-purity": "concept purity",
    "mode-purity": "mode purity",
}

# The first pattern that matches a value's name; groups are inserted.
_VALUES = (
    (r"top1_k(\d+)", "accuracy, k = {} (%)"),
    (r"top5_k(\d+)", "top-5 accuracy, k = {} (%)"),
    (r"top1", "accuracy (%)"),
    (r"top5", "top-5 accuracy (%)"),
    (r"top1_kept_aside", "accuracy on held-out training images (%)"),
    (r"top1_(\w+)", "accuracy on {} (%)"),
    (r"background_gap", "gap between same and random backgrounds (points)"),
    (r"miou_(\w+?)_1of(\d+)", "mIoU of {}, 1/{} of the training images (%)"),
    (r"miou_(\w+)", "mIoU of {} (%)"),
    (r"miou", "mIoU (%)"),
    (r"macc", "mean class accuracy (%)"),
    (r"aacc", "pixel accuracy (%)"),
    (r"iou/(.+)", "IoU of {} (%)"),
    (r"map(?:_(.+))?", "mAP (%)"),
    (r"mp(\d+)(?:_(.+))?", "precision at {} (%)"),
    (r"psnr", "PSNR (dB)"),
    (r"ssim", "SSIM"),
    (r"frechet_(.+)", "Fréchet distance, {}"),
    (r"j_and_f", "J&F (%)"),
    (r"j", "J, region overlap (%)"),
    (r"f", "F, contour accuracy (%)"),
    (r"j_recall", "recall of J (%)"),
    (r"f_recall", "recall of F (%)"),
    (r"j_and_f_first_mask_kept", "J&F of the first mask, never moved (%)"),
    (r"purity", "purity (%)"),
    (r"purity_of_one", "purity of a single concept (%)"),
    (r"purity_gain", "gain over a single concept (%)"),
    (r"gain", "gain over chance (%)"),
    (r"chosen_learning_rate", "chosen learning rate"),
    (r"unreadable_images", "unreadable images"),
)


def scores(results: Sequence[Result]) -> str:
    """The first value of every protocol on every data set; below, folded, all values."""
    columns = list(dict.fromkeys(name for result in results for name in result.baselines))
    rows = []
    for result, distinction in zip(results, _distinctions(results), strict=True):
        name, value = next(iter(result.values.items()))
        others = [number(result.baselines.get(column, {}).get(name)) for column in columns]
        rows.append([in_words(result.protocol, name), data(result) + distinction, number(value), *others])
    return page.table(["", "data", "this run", *columns], rows) + page.folded(
        "All values", "".join(_all_values(result) for result in results)
    )


def main_scores(results: Sequence[Result]) -> dict[str, str]:
    """The first value of every result, by what it is and where it was measured."""
    found = {}
    for result, distinction in zip(results, _distinctions(results), strict=True):
        name, value = next(iter(result.values.items()))
        found[f"{in_words(result.protocol, name)} on {result.test.name}{distinction}"] = number(value)
    return found


def measured_at(results: Sequence[Result]) -> str:
    steps = sorted({result.model.step for result in results if result.model.step is not None})
    when = f"Measured at step {', '.join(f'{step:,}' for step in steps)}. " if steps else ""
    return f"{when}Baselines, if measured: an untrained network of the same shape, and raw pixels."


def compared_scores(runs: Mapping[str, Sequence[Result]]) -> str:
    """A row for every value on the same images with the same settings; first values first, all of them folded."""
    values: dict[tuple[str, str, str], dict[str, float]] = {}
    named: dict[str, str] = {}
    heads = []
    of_run = [(run, result) for run, results in runs.items() for result in results]
    for (run_name, result), distinction in zip(of_run, _distinctions([result for _, result in of_run]), strict=True):
        place = result.test.fingerprint + distinction
        named[place] = data(result) + distinction
        heads.append((result.protocol, next(iter(result.values)), place))
        for name, value in result.values.items():
            values.setdefault((result.protocol, name, place), {})[run_name] = value

    def table(keys: Iterable[tuple[str, str, str]]) -> str:
        rows, best = [], []
        for protocol, name, place in dict.fromkeys(keys):
            found = [values[protocol, name, place].get(run) for run in runs]
            rows.append([in_words(protocol, name), named[place], *map(number, found)])
            best.append({column + 2 for column in _best(name, found)})
        return page.table(["", "data", *runs], rows, best)

    return table(heads) + page.folded("All values", table(values))


def data(result: Result) -> str:
    return f"{result.test.images:,} images of {result.test.name}"


def number(value: float | None) -> str:
    """Two decimals; small values keep three digits."""
    if value is None:
        return "–"
    return f"{value:.2f}" if value == 0 or abs(value) >= 0.1 else f"{value:.3g}"


def _all_values(result: Result) -> str:
    columns = {"this run": result.values, **result.baselines}
    rows = [
        [value_in_words(name), *(number(values.get(name)) for values in columns.values())] for name in result.values
    ]
    notes = "".join(page.note(note) for note in result.notes)
    return page.heading(f"{result.protocol}, {data(result)}") + notes + page.table(["", *columns], rows)


def _distinctions(results: Sequence[Result]) -> list[str]:
    """For each result, the settings in which it differs from others of the same protocol on the same images."""
    return [
        "".join(f", {key} = {_said(result.constants.get(key))}" for key in _differing(result, results))
        for result in results
    ]


def _differing(result: Result, results: Sequence[Result]) -> list[str]:
    alike = [r for r in results if (r.protocol, r.test.fingerprint) == (result.protocol, result.test.fingerprint)]
    keys = dict.fromkeys(key for other in alike for key in other.constants)
    return [key for key in keys if any(other.constants.get(key) != result.constants.get(key) for other in alike)]


def _said(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _best(name: str, found: Sequence[float | None]) -> list[int]:
    """Places of the best scores; none where there is nothing to compare."""
    known = [score for score in found if score is not None]
    if len(known) < 2 or any(word in name for word in _NEITHER_IS_BETTER):
        return []
    best = min(known) if any(word in name for word in _SMALLER_IS_BETTER) else max(known)
    return [place for place, score in enumerate(found) if score == best]


def in_words(protocol: str, value: str) -> str:
    """For example "k-NN accuracy, k = 20 (%)"; a value without words keeps its name."""
    return f"{_PROTOCOLS.get(protocol, protocol)} {value_in_words(value)}"


def value_in_words(value: str) -> str:
    for pattern, words in _VALUES:
        if match := re.fullmatch(pattern, value):
            places = [part.replace("_", " ") for part in match.groups() if part]
            rest = ", ".join(places[words.count("{}") :])
            return words.format(*places) + (f", {rest}" if rest else "")
    return value.replace("_", " ")
