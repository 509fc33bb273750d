"""Writing the vectors of images to a file, atomically: parquet in row groups, or npz.

Rows are in the order of the source. Parquet has the columns key, label (if the data has labels), embedding, sparse and
where (if the encoder has concepts), aligned (if it is aligned with text) and, with `dense`, patches. These are
fixed-size lists in row-major order, with their shapes in the file's metadata "asterism". The npz has keys, labels,
embeddings, sparse, where, aligned and patches as arrays of these shapes, and metadata.
"""

from __future__ import annotations

import json
import shutil
import zipfile
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asterism.data import Source
from asterism.errors import UserError
from asterism.features.extract import Encoded, stream
from asterism.files import replacing, scratch_folder, write_text
from asterism.images.bad_image import BadImage
from asterism.index.read import FORMAT, pyarrow
from asterism.lock import check_unowned, file_lock, owned
from asterism.nn.encoder import Encoder
from asterism.nn.fingerprint import encoder_fingerprint
from asterism.types import Features, Model

_ROW_GROUP_BYTES = 32 << 20
_COPIED_BYTES = 16 << 20  # at a time
_SUFFIXES = (".parquet", ".npz")
_PLURAL = {"embedding": "embeddings", "label": "labels"}  # npz arrays hold all images, parquet columns one per row

Table = dict[str, NDArray[Any]]  # one row per image in each


@dataclass(frozen=True)
class Written:
    """A summary of the file written."""

    path: Path
    data: str  # the name of the source, with its split
    images: int
    dim: int
    skipped: int  # unreadable images
    bad_images: Path | None  # the file that lists them

    def summary(self) -> str:
        return f"{self.images} images of {self.data} × {self.dim} dimensions: {self.path}"

    def warnings(self) -> list[str]:
        return [f"skipped {self.skipped} unreadable images, see {self.bad_images}"] if self.skipped else []


def check_target(path: Path, overwrite: bool) -> Path:
    """Check that the file can and may be written, before any work is done."""
    if path.suffix not in _SUFFIXES:
        raise UserError(f"cannot write {path}: the name must end in {' or '.join(_SUFFIXES)}")
    check_unowned(file_lock(path), path)
    if path.is_dir() or (path.exists() and not overwrite):
        raise UserError(f"{path} exists already; replace it with --overwrite, or choose another --out")
    if path.suffix == ".parquet":
        pyarrow()
    return path


def write_embeddings(
    encoder: Encoder,
    source: Source,
    target: Path,
    model: Model,
    *,
    dense: bool,
    batch_size: int,
    opened: tuple[str, str | None] | None = None,
) -> Written:
    """Encode every image and write the rows; the target appears only when it is complete.

    opened: the path and the split that open the source again, so that a reader of the index can show the images.
    """
    bad: list[BadImage] = []
    with replacing(target) as temporary, owned(file_lock(target), target), scratch_folder(target) as scratch:
        file: _Rows = (_Parquet if target.suffix == ".parquet" else _Npz)(temporary, scratch)
        facts = _describe(source, model, encoder, opened)
        choose = partial(_chosen, dense=dense)
        for batch in stream(encoder.eval(), source, choose, resize=encoder.image_size, batch_size=batch_size):
            file.add(_columns(batch), facts | {"grid": list(batch.features.grid)})
            bad += batch.unreadable
        file.finish()
        record = _record(bad, target)  # before the target is in place: without room for it there is neither
    return Written(target, source.name, file.images, file.dim, len(bad), record)


@dataclass(frozen=True)
class _Chosen:
    """The features that are written, and the grid of the patches.

    They are arrays, because a tensor that another process has computed keeps a file open; and copies, because a class
    token is a view that keeps the tokens of all patches in memory while it waits for its row group.
    """

    arrays: Table
    grid: tuple[int, int]


def _chosen(features: Features, dense: bool) -> _Chosen:
    tensors = {"embedding": features.cls}
    if features.sparse is not None and features.where is not None:
        tensors |= {"sparse": features.sparse, "where": features.where}
    if features.aligned is not None:
        tensors["aligned"] = features.aligned
    if dense:
        tensors["patches"] = features.patches
    return _Chosen({name: value.float().cpu().numpy().copy() for name, value in tensors.items()}, features.grid)


def _columns(batch: Encoded[_Chosen]) -> Table:
    columns: Table = {"key": np.array(batch.keys)}
    if batch.labels is not None:
        columns["label"] = batch.labels.numpy().copy()
    return columns | batch.features.arrays


def _describe(source: Source, model: Model, encoder: Encoder, opened: tuple[str, str | None] | None) -> dict[str, Any]:
    """Everything needed to use the vectors and to reproduce them."""
    path, split = opened or (None, None)
    return {
        "format": FORMAT,
        "model": model.name,
        "step": model.step,
        "encoder": encoder_fingerprint(encoder),
        "data": source.name,
        "path": path,
        "split": split,
        "fingerprint": source.fingerprint,
        "classes": source.classes,
        "image_size": encoder.image_size,
        "version": metadata.version("asterism"),
    }


class _Rows(ABC):
    """A table being written."""

    def __init__(self, path: Path, scratch: Path) -> None:
        self.path = path
        self.scratch = scratch  # a folder for temporary files
        self.images = 0
        self.dim = 0

    def add(self, columns: Table, facts: dict[str, Any]) -> None:
        self.dim = columns["embedding"].shape[1]
        self.write(columns, facts)
        self.images += len(columns["key"])

    @abstractmethod
    def write(self, columns: Table, facts: dict[str, Any]) -> None: ...

    @abstractmethod
    def finish(self) -> None: ...


class _Parquet(_Rows):
    """Row groups of some megabytes, so that neither writing nor reading needs the whole file in memory."""

    def __init__(self, path: Path, scratch: Path) -> None:
        super().__init__(path, scratch)
        self._waiting: list[Table] = []
        self._writer: Any = None

    def write(self, columns: Table, facts: dict[str, Any]) -> None:
        if self._writer is None:
            shapes = {name: list(values.shape[1:]) for name, values in columns.items() if values.ndim > 1}
            text = json.dumps(facts | {"shapes": shapes})
            schema = self._table([columns]).schema.with_metadata({"asterism": text})
            self._writer = pyarrow().parquet.ParquetWriter(self.path, schema)
        self._waiting.append(columns)
        if sum(values.nbytes for part in self._waiting for values in part.values()) > _ROW_GROUP_BYTES:
            self._write_group()

    def finish(self) -> None:
        self._write_group()
        self._writer.close()

    def _write_group(self) -> None:
        if self._waiting:
            self._writer.write_table(self._table(self._waiting).replace_schema_metadata(self._writer.schema.metadata))
            self._waiting = []

    def _table(self, parts: list[Table]) -> Any:
        arrow = pyarrow()
        arrays = {}
        for name in parts[0]:
            values = np.concatenate([part[name] for part in parts])
            arrays[name] = (
                arrow.FixedSizeListArray.from_arrays(values.reshape(-1), values[0].size)
                if values.ndim > 1
                else arrow.array(values.tolist() if values.dtype.kind == "U" else values)
            )
        return arrow.table(arrays)


class _Npz(_Rows):
    """Arrays are appended to separate files and copied into the archive at the end, so memory use stays small.

    Nothing is mapped into memory: where a full or failing disk raises an error on a read or a write, a mapped page of
    the same file kills the process.
    """

    def __init__(self, path: Path, scratch: Path) -> None:
        super().__init__(path, scratch)
        self._keys: list[str] = []
        self._kinds: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {}  # type and shape of a row, by column
        self._facts: dict[str, Any] = {}

    def write(self, columns: Table, facts: dict[str, Any]) -> None:
        self._keys += columns["key"].tolist()
        self._facts = facts
        for name, values in columns.items():
            if name != "key":
                self._kinds[name] = (values.dtype, values.shape[1:])
                with (self.scratch / name).open("ab") as file:
                    file.write(np.ascontiguousarray(values).tobytes())

    def finish(self) -> None:
        small = {"keys": np.array(self._keys), "metadata": np.array(json.dumps(self._facts))}
        with zipfile.ZipFile(self.path, "w") as archive:
            for name, values in small.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                    np.lib.format.write_array(file, values, allow_pickle=False)
            for name, (dtype, shape) in self._kinds.items():
                kind = {
                    "descr": np.lib.format.dtype_to_descr(dtype),
                    "fortran_order": False,
                    "shape": (self.images, *shape),
                }
                with (
                    (self.scratch / name).open("rb") as rows,
                    archive.open(f"{_PLURAL.get(name, name)}.npy", "w", force_zip64=True) as file,
                ):
                    np.lib.format.write_array_header_1_0(file, kind)
                    shutil.copyfileobj(rows, file, _COPIED_BYTES)


def _record(bad: list[BadImage], target: Path) -> Path | None:
    """List the images that were left out; the list of an earlier file of this name is replaced or removed."""
    path = target.with_name(f"{target.stem}.bad_images.jsonl")
    if not bad:
        path.unlink(missing_ok=True)
        return None
    lines = [json.dumps({"key": image.key, "reason": image.reason}, ensure_ascii=False) for image in bad]
    write_text(path, "\n".join(lines) + "\n")
    return path
