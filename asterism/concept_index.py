"""A collection of embedded images, searched by a single concept: a file that `asterism embed` wrote."""

from __future__ import annotations

import json
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from asterism.errors import MissingExtra, UserError
from asterism.indexed_images import IndexedImages, open_indexed_images
from asterism.ops.concept_search import Matches, merge, nearest_by_concept, no_matches

_PART = 1024  # images compared at a time


class ConceptIndex:
    """What is known of each image of a collection. Concepts are read part by part, maps only where they are shown."""

    def __init__(self, path: Path, dim: int) -> None:
        """`dim` is the width of the concepts that will be looked for."""
        self.path = path
        self._file = _open(path)
        self.facts = self._file.facts
        self.keys = self._file.keys()
        self._check(dim)

    def nearest(self, queries: Float[Tensor, "q d"], k: int, without: Collection[str] = ()) -> Matches:
        """The nearest images for each concept; none whose key is in `without`. There may be fewer than k."""
        best, first = no_matches(len(queries)), 0
        for part in self._file.concepts():
            keys = self.keys[first : first + len(part)]
            barred = torch.tensor([key in without for key in keys]).expand(len(queries), -1)
            found = nearest_by_concept(queries.float().cpu(), torch.from_numpy(part), k, barred)
            best, first = merge(best, found, first, k), first + len(part)
        allowed = int(best.similarity.isfinite().sum(dim=1).min())
        return Matches(best.similarity[:, :allowed], best.image[:, :allowed], best.token[:, :allowed])

    def maps(self, images: Sequence[int]) -> dict[int, Float[Tensor, "r h w"]]:
        """The maps of some images, by their number."""
        return {image: torch.from_numpy(values.copy()) for image, values in self._file.maps(sorted(set(images)))}

    def open_images(self, data: str | None = None) -> IndexedImages:
        """The images themselves: at `data`, or where they were when the file was made."""
        return open_indexed_images(self.path, self.facts, self.keys, data)

    def _check(self, dim: int) -> None:
        shape = self._file.shape
        if shape is None:
            raise UserError(
                f"{self.path} holds no concepts: it was made by {self.facts.get('model')}, which knows none; "
                "make it by `asterism embed` with a model that has concepts"
            )
        if shape[-1] != dim:
            raise UserError(
                f"{self.path} holds concepts of {shape[-1]} numbers, made by {self.facts.get('model')}, but this "
                f"model's have {dim}; embed the images with the same model"
            )


class _File(ABC):
    """The columns of a file, whatever its format."""

    facts: dict[str, Any]
    shape: tuple[int, ...] | None  # concepts of an image and numbers of each; None without concepts

    @abstractmethod
    def keys(self) -> list[str]: ...

    @abstractmethod
    def concepts(self) -> Iterator[NDArray[np.float32]]:
        """Parts [images, concepts, numbers], in order."""

    @abstractmethod
    def maps(self, rows: Sequence[int]) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """Row and maps of ascending rows."""


class _Parquet(_File):
    def __init__(self, path: Path) -> None:
        self._file = _pyarrow_parquet().ParquetFile(path)
        self.facts = json.loads(self._file.schema_arrow.metadata[b"asterism"])
        shapes = self.facts["shapes"]
        self.shape = tuple(shapes["sparse"]) if {"sparse", "where"} <= shapes.keys() else None

    def keys(self) -> list[str]:
        return self._file.read(columns=["key"])["key"].to_pylist()

    def concepts(self) -> Iterator[NDArray[np.float32]]:
        for batch in self._file.iter_batches(_PART, columns=["sparse"]):
            yield self._array(batch["sparse"], "sparse")

    def maps(self, rows: Sequence[int]) -> Iterator[tuple[int, NDArray[np.float32]]]:
        first = 0
        for group in range(self._file.num_row_groups):
            end = first + self._file.metadata.row_group(group).num_rows
            wanted = [row for row in rows if first <= row < end]
            if wanted:
                column = self._file.read_row_group(group, columns=["where"])["where"].combine_chunks()
                values = self._array(column, "where")
                yield from ((row, values[row - first]) for row in wanted)
            first = end

    def _array(self, column: Any, name: str) -> NDArray[np.float32]:
        values = column.flatten().to_numpy(zero_copy_only=False)
        return values.reshape(
            -1, *self.facts["shapes"][name]
        ).copy()  # Arrow's memory is read-only, torch wants its own


class _Npz(_File):
    def __init__(self, path: Path) -> None:
        self._file = np.load(path, allow_pickle=False)
        self.facts = json.loads(str(self._file["metadata"]))
        self._sparse = self._file["sparse"] if {"sparse", "where"} <= set(self._file.files) else None
        self.shape = None if self._sparse is None else self._sparse.shape[1:]

    def keys(self) -> list[str]:
        return self._file["keys"].tolist()

    def concepts(self) -> Iterator[NDArray[np.float32]]:
        assert self._sparse is not None
        for first in range(0, len(self._sparse), _PART):
            yield self._sparse[first : first + _PART]

    def maps(self, rows: Sequence[int]) -> Iterator[tuple[int, NDArray[np.float32]]]:
        values = self._file["where"]
        yield from ((row, values[row]) for row in rows)


def _open(path: Path) -> _File:
    if not path.is_file():
        raise UserError(f"there is no index {path}; make it by `asterism embed MODEL --data DATA --out {path}`")
    kinds: dict[str, type[_Parquet] | type[_Npz]] = {".parquet": _Parquet, ".npz": _Npz}
    if path.suffix not in kinds:
        raise UserError(f"{path} is no index; give a {' or '.join(kinds)} file that `asterism embed` made")
    try:
        return kinds[path.suffix](path)
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise UserError(f"{path} cannot be read as an index: {error}; make it again by `asterism embed`") from None


def _pyarrow_parquet() -> Any:
    try:
        return import_module("pyarrow.parquet")
    except ImportError:
        raise MissingExtra("pyarrow", "parquet") from None
