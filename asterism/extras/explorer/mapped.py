"""The vectors of an index as unit vectors in a file that is mapped into memory.

The first use copies them to the feature cache; later ones open in the time it takes to read the keys. Nothing is
written next to the user's file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from asterism.features.cache import stored
from asterism.features.rows import Block, Stored
from asterism.index.read import Index
from asterism.nn.fingerprint import encoder_fingerprint
from asterism.nn.text_encoder import TextEncoder


def mapped_index(index: Index, text_encoder: TextEncoder | None = None) -> Stored:
    """`vectors` [n, d] of all images and, if the model has them, `concepts` [n · r, d]; all of unit length.

    With an encoder that is aligned with text, also `aligned` [n, e], in the space of its texts.
    """

    def blocks(first: int, end: int) -> Iterator[Block]:
        columns = [("vectors", index.vectors())]
        if index.has_concepts:
            columns.append(("concepts", index.concepts()))
        if text_encoder is not None:
            columns.append(("aligned", index.aligned(text_encoder)))
        seen = 0
        for parts in _side_by_side([column for _, column in columns]):
            here = range(seen, seen + len(parts[0]))
            seen = here.stop
            skipped = max(0, min(len(here), first - here.start))
            if skipped == len(here):
                continue
            kept = [normalize(part[skipped:].float(), dim=-1) for part in parts]
            arrays = {name: list(rows) for (name, _), rows in zip(columns, kept, strict=True)}
            yield Block(index.keys[here.start + skipped : here.stop], arrays)

    status = index.path.stat()
    identity = {
        "rows": "index",
        "path": str(index.path.resolve()),
        "bytes": status.st_size,
        "changed": status.st_mtime_ns,
        "encoder": index.facts.get("encoder"),
        "text": None if text_encoder is None else encoder_fingerprint(text_encoder),
    }
    return stored(identity, len(index.keys), blocks)


def patches_of(index: Index, rows: Sequence[int]) -> Iterator[Float[Tensor, "p d"]]:
    """The patches of some images, given by ascending rows."""
    first, waiting = 0, list(rows)
    for part in index.patches():
        while waiting and waiting[0] < first + len(part):
            yield normalize(part[waiting.pop(0) - first].float(), dim=-1)
        first += len(part)


def _side_by_side(columns: list[Iterator[torch.Tensor]]) -> Iterator[list[torch.Tensor]]:
    """Parts of several columns with the same rows; the columns themselves come in parts of different lengths."""
    waiting = [next(column, torch.empty(0)) for column in columns]
    while all(len(part) for part in waiting):
        count = min(len(part) for part in waiting)
        yield [part[:count] for part in waiting]
        waiting = [
            part[count:] if len(part) > count else next(column, torch.empty(0))
            for part, column in zip(waiting, columns, strict=True)
        ]
