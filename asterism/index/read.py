"""Reading a file written by `asterism embed`: one row per image, read column by column."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from asterism.errors import MissingExtra, UserError, reason_of
from asterism.inputs import parse_json
from asterism.nn.encoder import Encoder
from asterism.nn.fingerprint import encoder_fingerprint
from asterism.nn.text_encoder import TextEncoder
from asterism.types import Features

FORMAT = 1  # of the columns and their metadata; older files have none, and the same columns
_LARGEST_SIDE = 1 << 24  # of one axis of a row
_BYTES = 16 << 20  # of a column in memory at a time
_COLUMNS = {"sparse": "sparse", "cls": "embedding", "patches": "patches"}  # by the field of `Features` that they hold
_OWN_COLUMNS = ("key", "label", "embedding", "sparse", "where", "aligned", "patches")


def open_index(path: Path, encoder: Encoder) -> Index:
    """An index made with `encoder`. Vectors of two models may have the same width, but are never comparable."""
    if not path.is_file():
        raise UserError(f"there is no index {path}; make it with `asterism embed MODEL --data DATA --out {path}`")
    kinds: dict[str, type[_Parquet] | type[_Npz]] = {".parquet": _Parquet, ".npz": _Npz}
    if path.suffix not in kinds:
        raise UserError(f"{path} is not an index; give a {' or '.join(kinds)} file made with `asterism embed`")
    with _readable(path):
        index = Index(path, kinds[path.suffix](path))
    index.check_format()
    index.check_encoder(encoder)
    return index


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turns whatever numpy, zipfile and Arrow raise for a damaged file into one sentence."""
    try:
        yield
    except (UserError, GeneratorExit):
        raise
    except Exception as error:
        raise UserError(
            f"{path} cannot be read as an index: {reason_of(error)}; make it again with `asterism embed`"
        ) from None


class Index:
    """The columns of a file. Vectors are read in parts, maps only for the images shown."""

    def __init__(self, path: Path, file: _File) -> None:
        self.path = path
        self.facts = file.facts
        self.keys = file.keys()
        self._file = file
        _check_facts(file.facts, file.shapes, self.keys)

    @property
    def has_concepts(self) -> bool:
        return {"sparse", "where"} <= self._file.shapes.keys()

    @property
    def has_patches(self) -> bool:
        return "patches" in self._file.shapes

    def vectors(self) -> Iterator[Float[Tensor, "n 1 d"]]:
        """One vector per image, in parts."""
        return (part[:, None] for part in self._parts("embedding"))

    def concepts(self) -> Iterator[Float[Tensor, "n r d"]]:
        """The concepts of each image, in parts."""
        if not self.has_concepts:
            raise UserError(
                f"{self.path} has no concepts: it was made with {self.facts.get('model')}, which has none; "
                "make it with `asterism embed` and a model that has concepts"
            )
        return self._parts("sparse")

    def aligned(self, encoder: TextEncoder) -> Iterator[Float[Tensor, "n 1 e"]]:
        """One vector per image in the space of texts, in parts.

        A file of the aligned model has them. One of the encoder that was aligned has the tokens that the probe reads.
        """
        if "aligned" in self._file.shapes:
            return (part[:, None] for part in self._parts("aligned"))
        needed = [column for field, column in _COLUMNS.items() if field in encoder.aligned_from]
        missing = [column for column in needed if column not in self._file.shapes]
        if missing:
            raise UserError(
                f"{self.path} was made with the encoder before it was aligned, and lacks {missing[0]}, which the probe "
                f"reads; make it with the aligned model, or with --dense"
            )
        return self._pooled(encoder, needed)

    @torch.no_grad()
    def _pooled(self, encoder: TextEncoder, columns: Sequence[str]) -> Iterator[Float[Tensor, "n 1 e"]]:
        place = next(encoder.parameters()).device
        size = min(max(1, _BYTES // (4 * int(np.prod(self._file.shapes[name])))) for name in columns)
        for parts in zip(*(self._parts(name, size) for name in columns), strict=True):
            found = dict(zip(columns, (part.to(place) for part in parts), strict=True))
            given = found.get("embedding", found.get("sparse", found.get("patches")))
            assert given is not None
            cls = given if given.ndim == 2 else given[:, 0]
            patches = found.get("patches", cls[:, None])
            features = Features(cls, patches, (1, patches.shape[1]), sparse=found.get("sparse"))
            yield encoder.align(features).cpu()[:, None]

    def patches(self) -> Iterator[Float[Tensor, "n p d"]]:
        """The patch tokens of each image, in parts."""
        if not self.has_patches:
            raise UserError(f"{self.path} has no patches; make it with `asterism embed --dense`")
        return self._parts("patches")

    def labels(self) -> list[int] | None:
        """The label of each image, as a position in the fact "classes"; None if the data had no labels."""
        with _readable(self.path):
            return self._file.labels(len(self.keys))

    def columns(self) -> dict[str, list[float] | list[str]]:
        """Columns that users have added: one number or one text per image."""
        with _readable(self.path):
            return self._file.added(len(self.keys))

    def maps(self, images: Sequence[int]) -> dict[int, Float[Tensor, "r h w"]]:
        """The maps of some images, by their row."""
        with _readable(self.path):
            rows = self._file.rows("where", sorted(set(images)))
            return {row: torch.from_numpy(values.copy()) for row, values in rows}

    def check_format(self) -> None:
        written = self.facts.get("format", FORMAT)
        if not isinstance(written, int) or written > FORMAT:
            raise UserError(
                f"{self.path} was written by a newer version of Asterism ({self.facts.get('version')}, format "
                f"{written}); this version reads up to format {FORMAT}. Update Asterism, or embed the images again"
            )

    def check_encoder(self, encoder: Encoder) -> None:
        made_with = self.facts.get("encoder")
        if made_with == encoder_fingerprint(encoder):
            return
        if isinstance(encoder, TextEncoder) and made_with == encoder_fingerprint(encoder.frozen()):
            return  # the encoder that was aligned: its vectors are the same
        step = "" if self.facts.get("step") is None else f" at step {self.facts['step']}"
        raise UserError(
            f"{self.path} was made by another model ({self.facts.get('model')}{step}) with Asterism "
            f"{self.facts.get('version')}, so its vectors cannot be compared; embed the images with this model, or use "
            "that one"
        )

    def _parts(self, name: str, count: int | None = None) -> Iterator[Tensor]:
        """A column in parts of `count` rows, by default of some megabytes."""
        shape, seen = self._file.shapes[name], 0
        with _readable(self.path):
            for part in self._file.parts(name, count or max(1, _BYTES // (4 * int(np.prod(shape))))):
                seen += len(part)
                if part.dtype != np.float32 or list(part.shape[1:]) != list(shape) or seen > len(self.keys):
                    raise ValueError(f"the column {name} is not one array {shape} of float32 per image")
                yield torch.from_numpy(part)
            if seen != len(self.keys):
                raise ValueError(f"the column {name} has {seen} rows for {len(self.keys)} images")


def _check_facts(facts: Any, shapes: Any, keys: Any) -> None:
    """Raise for metadata of another form than `asterism.index.write` writes."""
    if not isinstance(facts, dict) or not isinstance(shapes, dict) or "embedding" not in shapes:
        raise ValueError("its metadata is damaged")
    axes = {"embedding": 1, "sparse": 2, "where": 3, "aligned": 1, "patches": 2}
    for name, shape in shapes.items():
        known = axes.get(name, len(shape))
        if len(shape) != known or not all(isinstance(side, int) and 0 < side <= _LARGEST_SIDE for side in shape):
            raise ValueError(f"its column {name} has the shape {shape}")
    if not all(isinstance(key, str) for key in keys):
        raise ValueError("its column key does not hold names")


def _whole_numbers(values: list[Any], images: int) -> list[int]:
    if len(values) != images or not all(isinstance(value, int) and 0 <= value < 1 << 31 for value in values):
        raise ValueError("its labels are not one whole number per image")
    return values


def _plain_column(values: Any, images: int) -> list[float] | list[str] | None:
    """One number or one text per image, with NaN or "" where it is missing; None for a column of another kind."""
    if not isinstance(values, list) or len(values) != images:
        return None
    present = [value for value in values if value is not None]
    if all(isinstance(value, str) for value in present):
        return [value or "" for value in values]
    if all(isinstance(value, bool | int | float) for value in present):
        return [float("nan") if value is None else float(value) for value in values]
    return None


class _File(ABC):
    """The columns of a file of any format, under the names of the parquet columns."""

    facts: dict[str, Any]
    shapes: dict[str, list[int]]  # of one image's row, by column

    @abstractmethod
    def keys(self) -> list[str]: ...

    @abstractmethod
    def parts(self, name: str, count: int) -> Iterator[NDArray[np.float32]]:
        """The column in order, `count` rows or fewer at a time."""

    @abstractmethod
    def rows(self, name: str, rows: Sequence[int]) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """Number and values of ascending rows."""

    @abstractmethod
    def labels(self, images: int) -> list[int] | None: ...

    @abstractmethod
    def added(self, images: int) -> dict[str, list[float] | list[str]]: ...


class _Parquet(_File):
    def __init__(self, path: Path) -> None:
        self._file = pyarrow().parquet.ParquetFile(path)
        self.facts = parse_json((self._file.schema_arrow.metadata or {})[b"asterism"])
        self.shapes = self.facts["shapes"]

    def keys(self) -> list[str]:
        return self._file.read(columns=["key"])["key"].to_pylist()

    def parts(self, name: str, count: int) -> Iterator[NDArray[np.float32]]:
        for batch in self._file.iter_batches(count, columns=[name]):
            yield self._array(batch[name], name)

    def rows(self, name: str, rows: Sequence[int]) -> Iterator[tuple[int, NDArray[np.float32]]]:
        first = 0
        for group in range(self._file.num_row_groups):
            end = first + self._file.metadata.row_group(group).num_rows
            wanted = [row for row in rows if first <= row < end]
            if wanted:
                values = self._array(self._file.read_row_group(group, columns=[name])[name].combine_chunks(), name)
                yield from ((row, values[row - first]) for row in wanted)
            first = end

    def labels(self, images: int) -> list[int] | None:
        return _whole_numbers(self._values("label"), images) if "label" in self._file.schema_arrow.names else None

    def added(self, images: int) -> dict[str, list[float] | list[str]]:
        names = [name for name in self._file.schema_arrow.names if name not in _OWN_COLUMNS]
        columns = ((name, _plain_column(self._values(name), images)) for name in names)
        return {name: values for name, values in columns if values is not None}

    def _values(self, name: str) -> list[Any]:
        return self._file.read(columns=[name])[name].to_pylist()

    def _array(self, column: Any, name: str) -> NDArray[np.float32]:
        values = column.flatten().to_numpy(zero_copy_only=False)
        return values.reshape(-1, *self.shapes[name]).copy()  # Arrow's memory is read-only, torch needs writable memory


class _Npz(_File):
    def __init__(self, path: Path) -> None:
        self._file = np.load(path, allow_pickle=False)
        self.facts = parse_json(str(self._file["metadata"]))
        self._open: dict[str, NDArray[np.float32]] = {"embedding": self._file["embeddings"]}
        self.shapes = {"embedding": list(self._open["embedding"].shape[1:])}
        for name in ("sparse", "where", "aligned", "patches"):
            if name in self._file.files:
                self.shapes[name] = list(self._column(name).shape[1:])

    def keys(self) -> list[str]:
        return self._file["keys"].tolist()

    def parts(self, name: str, count: int) -> Iterator[NDArray[np.float32]]:
        values = self._column(name)
        for first in range(0, len(values), count):
            yield values[first : first + count]

    def rows(self, name: str, rows: Sequence[int]) -> Iterator[tuple[int, NDArray[np.float32]]]:
        values = self._column(name)
        yield from ((row, values[row]) for row in rows)

    def labels(self, images: int) -> list[int] | None:
        return _whole_numbers(self._file["labels"].tolist(), images) if "labels" in self._file.files else None

    def added(self, images: int) -> dict[str, list[float] | list[str]]:
        own = {"keys", "labels", "embeddings", "metadata", *_OWN_COLUMNS}
        columns = (
            (name, _plain_column(self._file[name].tolist(), images)) for name in self._file.files if name not in own
        )
        return {name: values for name, values in columns if values is not None}

    def _column(self, name: str) -> NDArray[np.float32]:
        if name not in self._open:
            self._open[name] = self._file[name]
        return self._open[name]


def pyarrow() -> Any:
    """The package, with its `parquet`."""
    try:
        import_module("pyarrow.parquet")
        return import_module("pyarrow")
    except ImportError:
        raise MissingExtra("pyarrow", "parquet") from None
