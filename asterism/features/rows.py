"""Rows that belong to images, in append-only files: the storage of the feature cache.

A part is a folder for consecutive images. Its rows are appended as they are computed, one file per array, and read by
mapping the files into memory. After every batch a line in `progress.jsonl` records the rows written. Rows without a
line, left by an interruption, are truncated.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from asterism.files import replacing
from asterism.images.bad_image import BadImage

_PROGRESS = "progress.jsonl"


@dataclass(frozen=True)
class Block:
    """The rows of a batch: for each array, the rows of each readable image."""

    keys: list[str]
    arrays: Mapping[str, list[Shaped[Tensor, "_ ..."]]]
    labels: list[int] | None = None  # of the readable images
    unreadable: list[BadImage] = field(default_factory=list)

    def __reduce__(self) -> tuple[Any, ...]:
        """Rows travel between processes as bytes: as tensors, each would need an open file and shared memory."""
        sent = {name: _sent(parts) for name, parts in self.arrays.items() if parts}
        return _received, (self.keys, sent, self.labels, self.unreadable)


_Sent = tuple[bytes, torch.dtype, torch.Size, list[int]]  # rows of all images, their type and shape, and their numbers


def _sent(parts: list[Shaped[Tensor, "_ ..."]]) -> _Sent:
    rows = torch.cat(parts).detach().contiguous()
    return rows.flatten().view(torch.uint8).numpy().tobytes(), rows.dtype, rows.shape, [len(part) for part in parts]


def _received(
    keys: list[str], sent: Mapping[str, _Sent], labels: list[int] | None, unreadable: list[BadImage]
) -> Block:
    arrays = {}
    for name, (content, dtype, shape, counts) in sent.items():
        rows = torch.frombuffer(bytearray(content), dtype=dtype) if content else torch.empty(0, dtype=dtype)
        arrays[name] = list(rows.view(shape).split_with_sizes(counts))
    return Block(keys, arrays, labels, unreadable)


@dataclass(frozen=True)
class Stored:
    """Arrays whose rows belong to images: image i has rows first[i] … first[i + 1] of `arrays[name]`."""

    arrays: Mapping[str, Shaped[Tensor, "_ ..."]]  # mapped from files
    first: Mapping[str, Int[Tensor, " _"]]
    keys: list[str]
    labels: Int[Tensor, " n"] | None
    unreadable: list[BadImage]

    def of(self, name: str, image: int) -> Shaped[Tensor, "_ ..."]:
        start, end = self.first[name][image : image + 2].tolist()
        return self.arrays[name][start:end]


class RowFolder:
    """The rows of consecutive images; the folder is named after the number of the first image."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.first = int(folder.name)
        self._lines = _progress(folder)

    @property
    def end(self) -> int:
        """The number of the first image after those stored."""
        return self.first + sum(len(line["keys"]) + len(line["unreadable"]) for line in self._lines)

    def grow(self, blocks: Iterable[Block]) -> None:
        """Append blocks, which must start where the part ends and account for every image, readable or not."""
        self._repair()
        with contextlib.ExitStack() as files:
            handles: dict[str, Any] = {}
            for block in blocks:
                for name in (*block.arrays, _PROGRESS):
                    if name not in handles:
                        handles[name] = files.enter_context((self.folder / name).open("ab"))
                self._lines.append(_append(block, handles))

    def take(self, other: RowFolder) -> None:
        """Append the rows of another part, which must begin where this one ends, and delete that part."""
        assert other.first == self.end, f"images {self.end} … {other.first} are missing"
        self._repair()
        other._repair()
        for file in sorted(other.folder.iterdir(), key=lambda file: file.name == _PROGRESS):  # rows before their lines
            with file.open("rb") as rows, (self.folder / file.name).open("ab") as own:
                shutil.copyfileobj(rows, own, 1 << 24)
        self._lines += other._lines
        shutil.rmtree(other.folder)

    def read(self) -> Stored:
        return _mapped(self.folder, self._lines)

    def _repair(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        _cut_back(self.folder, self._lines)


def _append(block: Block, handles: dict[str, Any]) -> dict[str, Any]:
    """Write the rows, then the line that confirms them."""
    arrays = {}
    for name, parts in block.arrays.items():
        whole = torch.cat([part.detach().cpu() for part in parts]) if parts else None
        if whole is not None:
            handles[name].write(whole.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
            handles[name].flush()
            shape, dtype = list(whole.shape[1:]), str(whole.dtype).removeprefix("torch.")
            arrays[name] = {"rows": [len(part) for part in parts], "shape": shape, "dtype": dtype}
    line = {
        "keys": block.keys,
        "labels": block.labels,
        "unreadable": [[bad.key, bad.reason] for bad in block.unreadable],
        "arrays": arrays,
    }
    handles[_PROGRESS].write(json.dumps(line).encode() + b"\n")
    handles[_PROGRESS].flush()
    return line


def _progress(folder: Path) -> list[dict[str, Any]]:
    """The complete lines whose rows are on disk; a machine crash may lose either."""
    try:
        text = (folder / _PROGRESS).read_bytes()
    except FileNotFoundError:
        return []
    lines: list[dict[str, Any]] = []
    for line in text.split(b"\n")[:-1]:
        try:
            lines.append(json.loads(line))
        except ValueError:
            break
    while lines and not all(_size(folder / name) >= size for name, size in _sizes(lines).items()):
        lines.pop()
    return lines


def _cut_back(folder: Path, lines: list[dict[str, Any]]) -> None:
    """Remove rows and a partial line left by an interruption."""
    sizes = _sizes(lines)
    for file in folder.iterdir():
        if file.name != _PROGRESS and _size(file) != sizes.get(file.name, 0):
            os.truncate(file, sizes.get(file.name, 0))
    kept = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    progress = folder / _PROGRESS
    if _size(progress) != len(kept):
        with replacing(progress) as temporary:
            temporary.write_bytes(kept)


def _sizes(lines: list[dict[str, Any]]) -> dict[str, int]:
    """Bytes of each array."""
    sizes: dict[str, int] = {}
    for line in lines:
        for name, array in line["arrays"].items():
            sizes[name] = sizes.get(name, 0) + sum(array["rows"]) * _row_bytes(array)
    return sizes


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def _mapped(folder: Path, lines: list[dict[str, Any]]) -> Stored:
    arrays, first = {}, {}
    for name in dict.fromkeys(name for line in lines for name in line["arrays"]):
        parts = [line["arrays"][name] for line in lines if name in line["arrays"]]
        rows = torch.tensor([0, *(count for part in parts for count in part["rows"])])
        first[name] = rows.cumsum(0)
        shape, dtype = parts[0]["shape"], getattr(torch, parts[0]["dtype"])
        total = int(first[name][-1])
        numbers = total * _numbers(shape)
        place = str(folder / name)
        flat = (
            torch.from_file(place, shared=False, size=numbers, dtype=dtype) if numbers else torch.empty(0, dtype=dtype)
        )
        arrays[name] = flat.view(total, *shape)
    labelled = all(line["labels"] is not None for line in lines)
    labels = torch.tensor([label for line in lines for label in line["labels"]]) if labelled else None
    return Stored(
        arrays=arrays,
        first=first,
        keys=[key for line in lines for key in line["keys"]],
        labels=None if labels is None else labels.long(),
        unreadable=[BadImage(key, reason) for line in lines for key, reason in line["unreadable"]],
    )


def _row_bytes(array: dict[str, Any]) -> int:
    return _numbers(array["shape"]) * getattr(torch, array["dtype"]).itemsize


def _numbers(shape: list[int]) -> int:
    return int(torch.Size(shape).numel())
