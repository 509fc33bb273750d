"""Images as a table for spreadsheets, and `labels.csv`, the table of those that were labelled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from asterism.csv_text import comma_separated
from asterism.extras.explorer.explored import Explored
from asterism.files import write_text

LABELS = "labels.csv"


def table(explored: Explored, rows: Sequence[int]) -> str:
    """One line per image: key, label of the data, label given here, and all columns of the index."""
    return comma_separated(_lines(explored, rows))


def write_labels(explored: Explored) -> None:
    """All labels, if there is a folder to write to; those of images of other collections come last."""
    if explored.writes is None:
        return
    given, own = explored.labels.by_key(), explored.labels.all()
    known = {explored.collection.keys[row] for row in own}
    others = ([key, "", label] for key, label in given.items() if key not in known)
    write_text(explored.writes / LABELS, comma_separated([*_lines(explored, list(own)), *others]))


def _lines(explored: Explored, rows: Sequence[int]) -> Iterator[list[object]]:
    collection, given = explored.collection, explored.labels.all()
    yield ["key", "class", "label", *collection.columns]
    for row in rows:
        own = collection.classes[collection.labels[row]] if collection.labels and collection.classes else ""
        columns = (values[row] for values in collection.columns.values())
        yield [collection.keys[row], own, given.get(row, ""), *columns]
