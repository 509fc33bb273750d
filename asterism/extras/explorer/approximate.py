"""Nearest unit vectors in milliseconds: exact for small collections, faiss's IVF for large ones.

IVF divides the vectors among about 4 √n cells and looks into the cells nearest to a query. Its file is mapped into
memory, so that opening it takes no time and unused parts stay on disk (`lab/benchmarks/index.py`).
"""

from __future__ import annotations

import math
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from asterism.errors import MissingExtra, UserError, reason_of
from asterism.files import replacing
from asterism.ops.neighbours import nearest

EXACT_BELOW = 200_000  # vectors; comparing one with all of them takes tens of milliseconds
_ROWS = 65_536  # added at a time
_PROBES = 32  # cells searched
_CELL_SAMPLE = 48  # vectors per cell that the cells are learnt from


@runtime_checkable
class Search(Protocol):
    """Nearest rows by cosine similarity."""

    def nearest(self, queries: Float[Tensor, "q d"], k: int) -> tuple[Float[Tensor, "q _"], Int[Tensor, "q _"]]:
        """Similarity and row of up to k nearest vectors, nearest first. Queries have unit length."""


class ExactSearch:
    """Compares a query with every vector. They may be mapped from a file: one part at a time is in memory."""

    def __init__(self, vectors: Float[Tensor, "n d"]) -> None:
        self._vectors = vectors

    def nearest(self, queries: Float[Tensor, "q d"], k: int) -> tuple[Float[Tensor, "q _"], Int[Tensor, "q _"]]:
        return nearest(queries, self._vectors, min(k, len(self._vectors)))


class ApproximateSearch:
    """An index of faiss, mapped from its file."""

    def __init__(self, path: Path, dim: int, count: int) -> None:
        faiss = _faiss()
        try:
            self._index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
        except RuntimeError as error:
            raise UserError(f"{path} cannot be read: {reason_of(error)}; delete it, and it is built again") from None
        if (self._index.d, self._index.ntotal) != (dim, count):
            raise UserError(f"{path} belongs to other vectors; delete it, and it is built again")
        self._index.nprobe = min(_PROBES, self._index.nlist)

    def nearest(self, queries: Float[Tensor, "q d"], k: int) -> tuple[Float[Tensor, "q _"], Int[Tensor, "q _"]]:
        similarity, rows = self._index.search(queries.float().contiguous().numpy(), min(k, self._index.ntotal))
        found = int((rows >= 0).sum(axis=1).min()) if len(rows) else 0  # cells with few vectors return fewer
        return torch.from_numpy(similarity[:, :found]), torch.from_numpy(rows[:, :found])


def build_approximate(vectors: Float[Tensor, "n d"], path: Path) -> None:
    """Build an approximate index of unit vectors and write it to `path`, which appears when it is complete."""
    faiss = _faiss()
    count, dim = vectors.shape
    cells = max(1, min(int(4 * math.sqrt(count)), count // _CELL_SAMPLE))
    index = faiss.IndexIVFFlat(faiss.IndexFlatIP(dim), dim, cells, faiss.METRIC_INNER_PRODUCT)
    index.cp.niter, index.cp.seed = 8, 0
    sample = vectors[:: max(1, count // (cells * _CELL_SAMPLE))]
    index.train(sample.float().contiguous().numpy())
    for first in range(0, count, _ROWS):
        index.add(vectors[first : first + _ROWS].float().contiguous().numpy())
    with replacing(path) as temporary:
        faiss.write_index(index, str(temporary))


def has_faiss() -> bool:
    try:
        _faiss()
    except MissingExtra:
        return False
    return True


def _faiss() -> Any:
    try:
        return import_module("faiss")
    except ImportError:
        raise MissingExtra("faiss-cpu", "faiss") from None
