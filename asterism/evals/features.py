"""Features of a whole source, batch by batch: memory holds one batch and whatever the caller keeps."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

from asterism.data import BadImage, Source, Subset, evaluation_batches
from asterism.data.workers import cores
from asterism.errors import UserError
from asterism.nn.encoder import Encoder
from asterism.types import Features

_QUIET_SECONDS = 2.0  # a bar appears when the work takes longer than this
_WORTH_HELPERS = 2000  # images

Feature = Literal["cls", "patches", "sparse"]
Workers = int | Literal["auto"]  # processes that decode images; 0: this one


@dataclass(frozen=True)
class Encoded:
    """A batch of readable images, in the order of the source, and the ones that could not be read."""

    features: Features
    keys: list[str]
    labels: Int[Tensor, " b"] | None
    unreadable: list[BadImage]


@dataclass(frozen=True)
class Extracted:
    """One vector per readable image, on the CPU."""

    features: Float[Tensor, "n d"]
    labels: Int[Tensor, " n"]
    keys: list[str]
    unreadable: list[BadImage]


def extract(
    encoder: Encoder,
    source: Source,
    vector: Callable[[Features], Tensor],
    *,
    resize: int,
    batch_size: int,
    workers: Workers = "auto",
    dtype: torch.dtype = torch.float32,
) -> Extracted:
    """One vector of every image of a labelled source; float16 halves the memory that millions of them need."""
    rows, count = torch.empty(0), 0
    labels, keys, unreadable = torch.empty(len(source), dtype=torch.int64), list[str](), list[BadImage]()
    for batch in stream(encoder, source, resize=resize, batch_size=batch_size, workers=workers):
        assert batch.labels is not None
        vectors = vector(batch.features).to("cpu", dtype)
        if not count:
            rows = torch.empty(len(source), vectors.shape[1], dtype=dtype)
        place = slice(count, count + len(vectors))
        rows[place], labels[place] = vectors, batch.labels
        keys += batch.keys
        unreadable += batch.unreadable
        count += len(vectors)
    return Extracted(rows[:count], labels[:count], keys, unreadable)


def stream(
    encoder: Encoder,
    source: Source,
    *,
    resize: int,
    batch_size: int,
    workers: Workers = "auto",
    first: int = 0,
) -> Iterator[Encoded]:
    """Features in the order of the source, from image `first` on: whoever was interrupted goes on where the rows end.

    Images are resized so that their shorter side is `resize`; the encoder sees the middle square of its image size.
    """
    rest = Subset(source, range(first, len(source))) if first else source
    helpers = _helpers(len(rest)) if workers == "auto" else workers
    batches = evaluation_batches(rest, encoder.image_size, resize=resize, batch_size=batch_size, workers=helpers)
    with _Bar(source.name, len(source), first) as bar:
        for batch in batches:
            if not batch.keys:
                raise UserError(
                    f"none of the {len(rest)} images of {source.name} can be read; the first: {batch.bad[0]}"
                )
            yield Encoded(encoder.encode(batch.images), batch.keys, batch.labels, batch.bad)
            bar.advance(len(batch.keys) + len(batch.bad))


def pooled(features: Features, kind: Feature) -> Float[Tensor, "b d"]:
    """One vector per image: the class token, the mean patch, or the mean concept."""
    if kind == "cls":
        return features.cls
    if kind == "patches":
        return features.patches.mean(1)
    if features.sparse is None:
        raise UserError("feature 'sparse' was asked for, but this encoder has no concept tokens; choose cls or patches")
    return features.sparse.mean(1)


def _helpers(images: int) -> int:
    """Processes that decode: none for what is done before they have started."""
    return cores() // 2 if images > _WORTH_HELPERS else 0


class _Bar:
    """A progress bar on a terminal that stays away when the work is short."""

    def __init__(self, title: str, total: int, done: int) -> None:
        self._console = Console(stderr=True)
        self._title, self._total, self._done = title, total, done
        self._start = time.monotonic()
        self._bar: Progress | None = None

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, images: int) -> None:
        self._done += images
        if self._bar is None and self._console.is_terminal and time.monotonic() - self._start > _QUIET_SECONDS:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self._bar = Progress(*columns, console=self._console, transient=True)
            self._bar.add_task(self._title, total=self._total)
            self._bar.start()
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=self._done)
