"""The interface of every source of images."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol, runtime_checkable

from jaxtyping import Integer, Num, UInt8
from torch import Tensor

from asterism.inputs import Unreadable, tried_again

_FILES, _BLOCKS, _BLOCK = 64, 256, 4096  # in a sample of contents: files, blocks of all files, bytes of each


@dataclass(frozen=True)
class Sample:
    """One decoded image with the annotations that its source provides."""

    image: UInt8[Tensor, "3 h w"]  # RGB
    key: str  # identifies the image in its source: relative path, or number
    label: int | None = None  # position in the source's `classes`
    semantic: Integer[Tensor, "h w"] | None = None  # class of each pixel
    instances: Integer[Tensor, "h w"] | None = None  # object of each pixel, 0 for none
    boxes: Num[Tensor, "m 4"] | None = None  # left, top, right, bottom of each object, in pixels


@runtime_checkable
class Source(Protocol):
    """Images by number, in an order that is fixed as long as the data does not change. Must be picklable.

    Pretraining uses only images. Evaluations need labels: `classes` names them, and is None if there are none.
    """

    @property
    def name(self) -> str:
        """The name of the data for display, with its split."""
        ...

    @property
    def fingerprint(self) -> str:
        """A hash of the source's contents, the same on every machine, so that a result can identify its data."""
        ...

    @property
    def classes(self) -> list[str] | None: ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Sample:
        """Decode the image; raise `BadImage` if that is impossible."""
        ...

    def label(self, index: int) -> int | None:
        """The label without decoding the image; None in a source without labels."""
        ...

    def keys(self) -> list[str]:
        """The key of every sample, without decoding any."""
        ...

    def files(self) -> Iterable[Path]:
        """Every file that images or masks are read from; none if they do not come from files."""
        ...


def same_images(one: Source, other: Source) -> bool:
    """Whether two sources are the same part of the same data.

    Fingerprints are of relative paths: `train/cat/1.png` and `test/cat/1.png` differ in the names of their sources.
    """
    return one.fingerprint == other.fingerprint and one.name == other.name


def stamp(source: Source) -> str:
    """A hash that changes whenever the images may have changed. A fingerprint identifies the data on any machine; the
    stamp also detects that a file was overwritten on this one."""
    digest = hashlib.blake2b(source.fingerprint.encode(), digest_size=16)
    for path in source.files():
        digest.update(f"{path.absolute()} {_state(path)}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def sampled_contents(source: Source) -> str:
    """A hash of parts of some files, of bounded cost: other images under the same names are likely to have another."""
    files = source.files()
    listed = files if isinstance(files, Sequence) else list(files)
    count = min(_FILES, len(listed))
    digest = hashlib.blake2b(digest_size=16)
    for number in range(count):
        path = listed[number * len(listed) // count]
        try:
            for part in tried_again(path, partial(_parts_of, path, _BLOCKS // count)):
                digest.update(part)
        except Unreadable:
            digest.update(b"unreadable")
    return digest.hexdigest()


def _parts_of(path: Path, count: int) -> list[bytes]:
    """The size of a file, and blocks of it."""
    if not path.is_file():
        raise Unreadable("it is not a regular file")
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        places = range(0, size, max(_BLOCK, size // count))
        return [str(size).encode(), *(os.pread(file.fileno(), _BLOCK, place) for place in places)]


def _state(path: Path) -> str:
    try:
        status = path.stat()
    except OSError:
        return "missing"  # such as a broken link, which is reported when it is read
    return f"{status.st_size} {status.st_mtime_ns}"
