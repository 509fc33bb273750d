"""The part of a report about classes: which objects are found, missed and imagined."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from asterism.extras.detection.objects import SURE, Detections, TrueObjects, found_pairs
from asterism.viz import page
from asterism.viz.page import Section

_MOST = 100  # classes that are listed, those with most objects first


def class_section(classes: Sequence[str], pairs: Sequence[tuple[Detections, TrueObjects]]) -> Section:
    """pairs: predictions and truths of images."""
    found, wrong, missed = Counter[int](), Counter[int](), Counter[int]()
    for prediction, truth in pairs:
        right, others, left = found_pairs(prediction, truth)
        found.update(int(truth.labels[place]) for _, place in right)
        wrong.update(int(prediction.labels[place]) for place in others)
        missed.update(int(truth.labels[place]) for place in left)
    seen = sorted({*found, *wrong, *missed}, key=lambda label: (-found[label] - missed[label], label))[:_MOST]
    rows = [
        [
            classes[label],
            str(found[label] + missed[label]),
            _share(found[label], found[label] + missed[label]),
            _share(found[label], found[label] + wrong[label]),
        ]
        for label in seen
    ]
    body = page.table(["class", "objects", "found", "right"], rows) if rows else page.note("No objects.")
    return Section(
        "Objects by class",
        body,
        f"Detections with a score of at least {SURE:g}, right if they overlap an object of their class by half. Found: "
        "share of the objects. Right: share of the detections.",
    )


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else "–"
