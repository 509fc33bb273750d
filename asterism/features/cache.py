"""Features on disk: computed once per encoder, data, transform and layer, and used by every protocol.

Missing rows are divided among the processes of the run. Each fills its own parts (`asterism.features.rows`), which the
first process joins. Memory holds one batch and the pages of the files in use. An interrupted run resumes after the last
complete batch, also with a different number of processes. One run writes at a time; others wait and find the work done.

The files are in `features` in the user's cache, which all processes must see. The least recently used are deleted when
the total exceeds $ASTERISM_FEATURES_GB (50). Features of small sources go to a temporary folder and are not kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from asterism.data.sources.index_cache import user_cache
from asterism.errors import UserError
from asterism.features.rows import Block, RowFolder, Stored
from asterism.files import locked, private_folder
from asterism.ops.collectives import on_every_process, on_first_process, rank, world_size

WORTH_KEEPING = 256  # images
_IDENTITY, _LOCK = "identity.json", ".lock"
_LIMIT = "ASTERISM_FEATURES_GB"
_FORMAT = 3  # version of the file format

Produce = Callable[[int, int], Iterator[Block]]
_Task = tuple[str, int, int]  # a part's name, and the images to add to it


def stored(identity: Mapping[str, Any] | None, images: int, produce: Produce, *, batch_size: int = 1) -> Stored:
    """The arrays of all images; `produce(i, j)` computes those of images i … j, in blocks.

    `identity` is everything the rows depend on; None if they should not be kept. Blocks must cover the images in order.
    Work is divided at multiples of `batch_size`, so that batches, and therefore rows, are the same as with one process.
    Must be called by all processes of a run.
    """
    if identity is None or images < WORTH_KEEPING:
        with private_folder() as place:
            part = RowFolder(place / "0")
            part.grow(produce(0, images))
            return part.read()  # a mapped file stays readable after it is deleted
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
    """The tasks of each process."""
    with _needing_room(folder):
        _make_room(folder)
        (folder / _IDENTITY).write_text(identity, encoding="utf-8")
        parts = _parts(folder)
    names = {part.end: part.folder.name for part in parts}  # rows missing after a part are appended to it
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
    """The parts in the order of their images; one that was already merged into another is deleted."""
    found: list[RowFolder] = []
    for place in sorted((file for file in folder.iterdir() if file.is_dir()), key=lambda file: int(file.name)):
        part = RowFolder(place)
        if found and part.first < found[-1].end:
            shutil.rmtree(place)
        else:
            found.append(part)
    return found


def _missing(parts: list[RowFolder], images: int, batch_size: int) -> list[range]:
    """Batches of images that are in no part, ascending."""
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
            f"cannot store features in {folder}: {error}; free space there, or set XDG_CACHE_HOME to a folder with more"
        ) from None


def _make_room(wanted: Path) -> None:
    """Delete the least recently used features beyond the limit, but never those in `wanted`."""
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
