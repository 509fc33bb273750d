"""Tar files in WebDataset layout, with random access through an index of offsets.

Members with the same name up to the first dot form a sample: an image and, in `.cls`, its class number. The index is
built once and stored in the user's cache; nothing is ever written next to the data. It is rebuilt when the size or the
time stamp of a tar file changes. `classes.txt` next to the tar files names the classes, one per line.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from asterism.data.sources import splits
from asterism.data.sources.index_cache import Arrays, Names, read_index, settled, user_cache_file, write_index
from asterism.data.sources.source import Sample
from asterism.data.sources.tar_index import Member, members
from asterism.errors import UserError
from asterism.images.bad_image import BadImage
from asterism.images.decode import SUFFIXES, decode
from asterism.images.limits import check_bytes
from asterism.inputs import Unreadable, read_text, tried_again

_VERSION = "1"
_UNLABELLED = -1
_LARGEST_CLASS = 999_999  # numbers are positions in a list of class names, which is as long as the largest


class Shards:
    """The images of one or more tar files."""

    def __init__(self, files: list[Path], name: str) -> None:
        self._files = files
        self.name = name
        self._index = _index(files)
        if not len(self._index):
            raise UserError(f"no images in {', '.join(map(str, files[:3]))}: WebDataset members end in .jpg, .png …")
        self.classes = _class_names(files[0].parent, self._index.label)
        self._handles = _Handles()

    @cached_property
    def fingerprint(self) -> str:
        return self._index.fingerprint()

    def __len__(self) -> int:
        return len(self._index)

    def __getitem__(self, index: int) -> Sample:
        if not 0 <= index < len(self):
            raise IndexError(index)
        where, key = self._index, self.key(index)
        data = self._handles.read(
            self._files[int(where.shard[index])], int(where.offset[index]), int(where.size[index]), key
        )
        return Sample(decode(data, key), key, self.label(index))

    def keys(self) -> list[str]:
        return [self.key(index) for index in range(len(self))]

    def files(self) -> list[Path]:
        return self._files

    def key(self, index: int) -> str:
        return self._index.keys[index].decode()

    def label(self, index: int) -> int | None:
        return None if self.classes is None else int(self._index.label[index])


def is_tar(path: Path) -> bool:
    return path.suffix.lower() == ".tar"


def find_shards(folder: Path) -> dict[str, list[Path]]:
    """Tar files by the split in their name (`train.tar`, `set-train-0001.tar`) or in that of their subfolder; under ""
    if neither names a split."""
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.iterdir()):
        if path.is_file() and is_tar(path) and not path.name.startswith("."):
            found.setdefault(_split_in(path.stem), []).append(path)
        elif path.is_dir() and splits.part(path.name):
            inside = [p for p in sorted(path.iterdir()) if p.is_file() and is_tar(p) and not p.name.startswith(".")]
            if inside:
                found.setdefault(path.name.lower(), []).extend(inside)
    return found


def open_shards(path: Path, split: str | None = None) -> Shards:
    """A single tar file, or the tar files of a folder that belong to a split."""
    place = path.resolve()
    if path.is_file():
        if split not in (None, splits.EVERYTHING) and splits.part(split) != splits.part(_split_in(path.stem)):
            raise UserError(f"{path} is a single file; leave the split {split!r} out, or name the folder of shards")
        return Shards([path], f"{place.parent.name}/{place.stem}")
    found = find_shards(path)
    named = [name for name in found if name]
    if split == splits.EVERYTHING or (split is None and not splits.divided(named)):
        return Shards(sorted(file for files in found.values() for file in files), place.name)
    chosen = splits.pick(split, named, str(path))
    return Shards(found[chosen], f"{place.name}/{chosen}")


def _split_in(stem: str) -> str:
    words = [word.lower() for word in re.split(r"[^A-Za-z]+", stem) if splits.part(word)]
    return words[-1] if words else ""


@dataclass(frozen=True)
class _Index:
    keys: Names
    shard: NDArray[np.int32]
    offset: NDArray[np.int64]
    size: NDArray[np.int64]
    label: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.shard)

    def fingerprint(self) -> str:
        digest = hashlib.blake2b(self.keys.blob, digest_size=8)
        digest.update(self.size.astype("<i8").tobytes() + self.label.astype("<i8").tobytes())
        return digest.hexdigest()


def _index(files: list[Path]) -> _Index:
    checked_at = time.time_ns()
    stamps = np.array([(status.st_size, status.st_mtime_ns) for status in (file.stat() for file in files)], np.int64)
    identity = "\0".join([_VERSION, *(str(file.resolve()) for file in files)]).encode()
    cache = user_cache_file("shards", identity)
    arrays = read_index(cache)
    if arrays is not None and np.array_equal(arrays.get("stamps", ()), stamps):
        known = _unpack(arrays, stamps[:, 0])
        if known is not None:
            return known
    index = _build(files)
    if settled(stamps[:, 1], checked_at):
        write_index(cache, _pack(index, stamps))
    return index


def _pack(index: _Index, stamps: NDArray[np.int64]) -> Arrays:
    return {
        "stamps": stamps,
        "keys": np.frombuffer(index.keys.blob, dtype=np.uint8),
        "shard": index.shard,
        "offset": index.offset,
        "size": index.size,
        "label": index.label,
    }


def _unpack(arrays: Arrays, file_sizes: NDArray[np.int64]) -> _Index | None:
    """The stored index; None if it is damaged."""
    try:
        keys = Names(arrays["keys"].astype(np.uint8).tobytes())
        shard, offset, size, label = (arrays[name].astype(np.int64) for name in ("shard", "offset", "size", "label"))
    except (KeyError, ValueError, TypeError):
        return None
    if any(column.shape != (len(keys),) for column in (shard, offset, size, label)):
        return None
    in_range = (shard >= 0) & (shard < len(file_sizes)) & (offset >= 0) & (size >= 0) & (label >= _UNLABELLED)
    if not in_range.all() or (label > _LARGEST_CLASS).any() or (offset + size > file_sizes[shard]).any():
        return None
    return _Index(keys, shard.astype(np.int32), offset, size, label)


def _build(files: list[Path]) -> _Index:
    keys: list[bytes] = []
    rows: list[tuple[int, int, int, int]] = []
    for shard, path in enumerate(files):
        try:
            with path.open("rb") as file:
                for name, image, label in _samples(path, file):
                    keys.append(f"{path.stem}/{name}".encode("utf-8", "backslashreplace"))
                    rows.append((shard, image.offset, image.size, label))
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror}") from None
    table = np.array(rows, dtype=np.int64).reshape(-1, 4)
    return _Index(Names.of(keys), table[:, 0].astype(np.int32), *(table[:, i].copy() for i in (1, 2, 3)))


def _samples(path: Path, file: BinaryIO) -> Iterator[tuple[str, Member, int]]:
    """Name, image and class number of each sample that has an image."""
    for name, group in groupby(members(path, file), key=lambda member: stem(member.name)):
        image, label = None, _UNLABELLED
        for member in group:
            kind = member.name[len(name) :].lower()
            # If there are several images, the one with the shortest suffix: `.jpg` before `.mask.png`.
            if kind[kind.rfind(".") :] in SUFFIXES and (image is None or kind.count(".") < image[1]):
                image = member, kind.count(".")
            elif kind in (".cls", ".cls.txt"):
                label = _class_number(path, file, member)
        if image is not None:
            yield name, image[0], label


def stem(name: str) -> str:
    """The name of a member up to the first dot of its last part: members of one sample share it."""
    folder, slash, base = name.rpartition("/")
    return folder + slash + base.partition(".")[0]


def _class_number(path: Path, file: BinaryIO, member: Member) -> int:
    file.seek(member.offset)
    text = file.read(min(member.size, 32)).strip()
    number = int(text) if text.isdigit() else _UNLABELLED
    if number > _LARGEST_CLASS:
        raise UserError(
            f"{path}: {member.name} holds the class {number}; number the classes from 0 to {_LARGEST_CLASS:,} at most"
        )
    return number


def _class_names(folder: Path, labels: NDArray[np.int64]) -> list[str] | None:
    """Names by class number; None if any image has no class. In `classes.txt`, text before a tab is ignored."""
    if (labels == _UNLABELLED).any():
        return None
    count = int(labels.max()) + 1
    for file in (folder / "classes.txt", folder.parent / "classes.txt"):
        if file.is_file():
            lines = [line.rpartition("\t")[2].strip() for line in read_text(file).splitlines()]
            names = [line for line in lines if line]
            if len(names) < count:
                raise UserError(f"{file} names {len(names)} classes, but class numbers go up to {count - 1}")
            return names
    return [str(number) for number in range(count)]


class _Handles:
    """The most recently used open tar files. `pread` takes the position, so processes may share a handle."""

    _LIMIT = 128  # below the usual limit of 256 or 1024 open files

    def __init__(self) -> None:
        self._open: OrderedDict[Path, int] = OrderedDict()

    def read(self, path: Path, offset: int, size: int, key: str) -> bytes:
        check_bytes(size, key)
        try:
            data = tried_again(path, lambda: self._read(path, offset, size))
        except Unreadable as error:
            raise BadImage(key, f"{path.name}: {error}") from None
        if len(data) < size:
            raise BadImage(key, f"{path.name} ends inside the image")
        return data

    def _read(self, path: Path, offset: int, size: int) -> bytes:
        try:
            return os.pread(self._handle(path), size, offset)
        except OSError:
            if path in self._open:  # a handle of a network drive stays stale after the drive is back
                os.close(self._open.pop(path))
            raise

    def _handle(self, path: Path) -> int:
        if path not in self._open:
            if len(self._open) >= self._LIMIT:
                os.close(self._open.popitem(last=False)[1])
            self._open[path] = os.open(path, os.O_RDONLY)
        self._open.move_to_end(path)
        return self._open[path]

    def __reduce__(self) -> tuple[type[_Handles], tuple[Any, ...]]:
        return _Handles, ()

    def __del__(self) -> None:
        for handle in self._open.values():
            os.close(handle)
