"""Features on disk: worked out once for an encoder, data, transform and layer, and used by every protocol.

What is missing is divided among the processes of the run; each fills parts of its own (`asterism.features.rows`),
which the first process joins. Memory holds a batch and whatever pages of the files are in use. Whoever was interrupted
goes on behind what is there, also with another number of processes. One run writes at a time; others wait and find the
work done.

They lie in the user's cache, in `features`, which all processes must see; the longest unused are deleted when all
together exceed $ASTERISM_FEATURES_GB (50). Small sources are worked out in a temporary folder and forgotten.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from asterism.data.sources.index_cache import user_cache
from asterism.errors import UserError
from asterism.features.rows import Block, RowFolder, Stored
from asterism.files import locked
from asterism.ops.collectives import on_every_process, on_first_process, rank, world_size

WORTH_KEEPING = 256  # images
_IDENTITY, _LOCK = "identity.json", ".lock"
_LIMIT = "ASTERISM_FEATURES_GB"
_FORMAT = 3  # counts changes of what the files mean

Produce = Callable[[int, int], Iterator[Block]]
_Task = tuple[str, int, int]  # a part's name, and the images to add to it


def stored(identity: Mapping[str, Any] | None, images: int, produce: Produce, *, batch_size: int = 1) -> Stored:
    """The arrays of all images; `produce(i, j)` works out those of images i … j, in blocks.

    `identity` is everything the rows depend on; None where nothing is to be kept. Blocks must cover the images in
    order. Work is divided at multiples of `batch_size`, so that batches, and with them the rows, are those of one
    process. To be called by all processes of a run.
    """
    if identity is None or images < WORTH_KEEPING:
        with tempfile.TemporaryDirectory(prefix="asterism-") as place:
            part = RowFolder(Path(place) / "0")
            part.grow(produce(0, images))
            return part.read()  # mapped files outlive their names
    text = json.dumps({"format": _FORMAT, **identity}, sort_keys=True)
    folder = features_folder() / hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    with locked(folder / _LOCK) if rank() == 0 else contextlib.nullcontext():
        tasks = on_first_process(lambda: _plan(folder, text, images, batch_size))
        on_every_process(lambda: _work(folder, tasks[rank()], produce))
        on_first_process(lambda: _join(folder))
        return RowFolder(folder / "0").read()


def features_folder() -> Path:
    return user_cache() / "features"


def _plan(folder: Path, identity: str, images: int, batch_size: int) -> list[list[_Task]]:
    """What each process is to do."""
    with _needing_room(folder):
        _make_room(folder)
        (folder / _IDENTITY).write_text(identity, encoding="utf-8")
        parts = _parts(folder)
    names = {part.end: part.folder.name for part in parts}  # what is missing behind a part is added to it
    batches = _missing(parts, images, batch_size)
    count = world_size()
    shares = [batches[len(batches) * i // count : len(batches) * (i + 1) // count] for i in range(count)]
    return [[(names.get(run.start, str(run.start)), run.start, run.stop) for run in _joined(own)] for own in shares]


def _work(folder: Path, tasks: list[_Task], produce: Produce) -> None:
    with _needing_room(folder):
        for name, first, end in tasks:
            RowFolder(folder / name).grow(produce(first, end))


def _join(folder: Path) -> None:
    with _needing_room(folder):
        whole, *others = _parts(folder)
        for part in others:
            whole.take(part)
        os.utime(folder)


def _parts(folder: Path) -> list[RowFolder]:
    """In the order of their images; one that another has already taken is deleted."""
    found: list[RowFolder] = []
    for place in sorted((file for file in folder.iterdir() if file.is_dir()), key=lambda file: int(file.name)):
        part = RowFolder(place)
        if found and part.first < found[-1].end:
            shutil.rmtree(place)
        else:
            found.append(part)
    return found


def _missing(parts: list[RowFolder], images: int, batch_size: int) -> list[range]:
    """Batches of images that no part has, ascending."""
    starts, ends = [part.first for part in parts] + [images], [0] + [part.end for part in parts]
    gaps = (range(end, start) for end, start in zip(ends, starts, strict=True) if end < start)
    batches = []
    for gap in gaps:
        cuts = [gap.start, *range((gap.start // batch_size + 1) * batch_size, gap.stop, batch_size), gap.stop]
        batches += [range(a, b) for a, b in itertools.pairwise(cuts)]
    return batches


def _joined(batches: list[range]) -> list[range]:
    runs: list[range] = []
    for batch in batches:
        start = runs.pop().start if runs and runs[-1].stop == batch.start else batch.start
        runs.append(range(start, batch.stop))
    return runs


@contextlib.contextmanager
def _needing_room(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(
            f"cannot keep features in {folder}: {error}; free space there, or set XDG_CACHE_HOME to a folder with room"
        ) from None


def _make_room(wanted: Path) -> None:
    """Delete the longest unused features beyond the limit; never the wanted ones."""
    try:
        limit = float(os.environ.get(_LIMIT, "50")) * 1e9
    except ValueError:
        raise UserError(f"{_LIMIT} = {os.environ[_LIMIT]!r} must be a number of gigabytes, for example 50") from None
    home = features_folder()
    if not home.is_dir():
        return
    folders = sorted((f for f in home.iterdir() if f.is_dir()), key=lambda f: f.stat().st_mtime, reverse=True)
    total = 0.0
    for folder in folders:
        total += sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        if total > limit and folder != wanted:
            shutil.rmtree(folder, ignore_errors=True)
