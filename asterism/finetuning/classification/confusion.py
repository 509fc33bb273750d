"""Which classes are mistaken for which: a matrix for few classes, the most frequent confusions for many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from asterism.viz import page
from asterism.viz.page import Section

_MOST = 20  # classes of a matrix
_PAIRS = 20  # confusions that are listed


def confusion_section(classes: Sequence[str], pairs: Sequence[tuple[int, int]]) -> Section:
    """pairs: true and predicted class of every image."""
    counts = Counter(pairs)
    if len(classes) <= _MOST:
        header = ["true \\ predicted", *classes]
        rows = [
            [name, *(str(counts.get((true, found), 0) or "") for found in range(len(classes)))]
            for true, name in enumerate(classes)
        ]
        best = [{place + 1} for place in range(len(classes))]
        return Section(
            "Confusion", page.table(header, rows, best), "Images of each class, by the class they are given."
        )
    wrong = [(pair, count) for pair, count in counts.most_common() if pair[0] != pair[1]][:_PAIRS]
    rows = [[classes[true], classes[found], str(count)] for (true, found), count in wrong]
    body = page.table(["true", "predicted", "images"], rows) if rows else page.note("No image was given a wrong class.")
    return Section("Confusion", body, "The classes that are mistaken for each other most often.")
