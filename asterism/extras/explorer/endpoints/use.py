"""Using a selection: as a list, a CSV file or copied images; labels, their scores, and the rest sorted by them."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from pathlib import Path, PurePosixPath

import torch

from asterism.extras.explorer.answers import Answer, Refused, as_json
from asterism.extras.explorer.endpoints.endpoint import JSON_BYTES, Endpoint
from asterism.extras.explorer.endpoints.image import MOST_FOUND
from asterism.extras.explorer.explored import Explored
from asterism.extras.explorer.labelling import MOST_CLASSES, MOST_LABELLED, class_scores, leave_one_out
from asterism.extras.explorer.query import Query
from asterism.extras.explorer.table import table, write_labels
from asterism.files import filling
from asterism.images.write import to_pillow

_MOST_ROWS = 200_000
_MOST_COPIED = 10_000
_LONGEST_LABEL = 80  # characters
_FOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,63}")


def export(explored: Explored, query: Query) -> Answer:
    """The selected images as a file that the browser saves: names only, or a table with all columns."""
    fields = query.json()
    rows, kind = _rows(explored, query), fields.text("kind", 10)
    if kind == "list":
        return Answer(
            "".join(f"{explored.collection.keys[row]}\n" for row in rows).encode(), "text/plain; charset=utf-8"
        )
    if kind == "csv":
        return Answer(table(explored, rows).encode(), "text/csv; charset=utf-8")
    raise Refused("kind must be 'list' or 'csv'")


def copy(explored: Explored, query: Query) -> Answer:
    """Copy the selected images to a new folder below the one that may be written to."""
    target = _writable(explored)
    name = query.json().text("folder", 64)
    if not _FOLDER.fullmatch(name):
        raise Refused("a folder's name has letters, digits, spaces, dots, - and _, and begins with a letter or digit")
    rows = _rows(explored, query)
    if len(rows) > _MOST_COPIED:
        raise Refused(f"{len(rows):,} images are selected; at most {_MOST_COPIED:,} can be copied at once")
    if (target / name).exists():
        raise Refused(f"{name} exists already; choose another name", 409)
    files, taken = explored.collection.files(), set[str]()
    with filling(target / name) as folder:
        for row in rows:
            key = explored.collection.keys[row]
            file = files.get(key)
            place = folder / _file_name(key, "" if file else ".png", taken)
            if file is None:
                to_pillow(explored.collection.image(row)).save(place)
            else:
                shutil.copyfile(file, place)
    return as_json({"copied": len(rows), "folder": name})


def label(explored: Explored, query: Query) -> Answer:
    """Label images, or remove their labels; with writing allowed, all labels are kept in files."""
    fields = query.json()
    rows = _rows(explored, query)
    text = None if fields.values.get("label") is None else fields.text("label", _LONGEST_LABEL)
    with explored.labels.changing() as give:
        given = explored.labels.all()
        if text is not None:
            if text not in given.values() and len(set(given.values())) >= MOST_CLASSES:
                raise Refused(f"there are {MOST_CLASSES} different labels already", 409)
            if len(given.keys() | set(rows)) > MOST_LABELLED:
                said = f"at most {MOST_LABELLED:,} images can be labelled here; write the rest with a program"
                raise Refused(said, 409)
        give(rows, text)
        write_labels(explored)
    return scores(explored, query)


def scores(explored: Explored, query: Query) -> Answer:
    """How many labels there are, and how well each is predicted by the others."""
    given = explored.labels.all()
    names = sorted(set(given.values()))
    rows = torch.tensor(list(given), dtype=torch.int64)
    labels = torch.tensor([names.index(each) for each in given.values()], dtype=torch.int64)
    found = leave_one_out(explored.collection.vectors[rows].float(), labels)
    counts = Counter(given.values())
    return as_json(
        {
            "labelled": len(given),
            "classes": [{"name": name, "images": counts[name]} for name in names],
            "rows": {str(row): name for row, name in given.items()},
            "knn": found.knn,
            "linear": found.linear,
        }
    )


def rest(explored: Explored, query: Query) -> Answer:
    """Images without a label, by how much they look like a label, or the least certain ones first."""
    given = explored.labels.all()
    names = sorted(set(given.values()))
    if len(names) < 2:
        raise Refused("give at least two different labels first; then the others can be sorted by them", 409)
    order, count = query.choice("order", ("likely", "unsure"), "likely"), query.integer("count", 1, MOST_FOUND, 48)
    labels = torch.tensor([names.index(each) for each in given.values()])
    values = class_scores(explored.collection.vectors, torch.tensor(list(given)), labels, len(names))
    if order == "likely":
        ranked = values[:, names.index(query.choice("label", names))]
    else:
        best = values.topk(2, dim=1).values
        ranked = -(best[:, 0] - best[:, 1])
    ranked[torch.tensor(list(given))] = -torch.inf
    top = ranked.topk(min(count, len(ranked) - len(given))) if len(ranked) > len(given) else None
    found = [] if top is None else zip(top.indices.tolist(), top.values.tolist(), strict=True)
    guesses = values.argmax(dim=1)
    return as_json(
        {"items": [{"row": r, "similarity": round(v, 4), "guess": names[int(guesses[r])]} for r, v in found]}
    )


def _rows(explored: Explored, query: Query) -> list[int]:
    rows = query.json().integers("rows", 0, len(explored.collection) - 1, _MOST_ROWS)
    if not rows:
        raise Refused("nothing is selected")
    return rows


def _writable(explored: Explored) -> Path:
    if explored.writes is None:
        raise Refused("the explorer only reads; start it with --allow-writes DIR to let it write to that folder", 403)
    return explored.writes


def _file_name(key: str, ending: str, taken: set[str]) -> str:
    """A plain name for a copied image: the last part of its key, numbered where it repeats."""
    plain = re.sub(r"[^\w .()-]", "_", PurePosixPath(key).name).lstrip(".")[-120:] or "image"
    stem, suffix = PurePosixPath(plain).stem, ending or PurePosixPath(plain).suffix
    name, number = stem + suffix, 2
    while name.lower() in taken:
        name, number = f"{stem} ({number}){suffix}", number + 1
    taken.add(name.lower())
    return name


ENDPOINTS = (
    Endpoint("use/export", export, most_bytes=JSON_BYTES),
    Endpoint("use/copy", copy, most_bytes=JSON_BYTES),
    Endpoint("use/label", label, most_bytes=JSON_BYTES),
    Endpoint("use/scores", scores),
    Endpoint("use/rest", rest, ("label", "order", "count")),
)
