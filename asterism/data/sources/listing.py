"""The images below a folder: one pass over the tree, stored compactly, cached on disk.

The pass reads every folder once and makes no system calls for individual files. Symbolic links to folders are followed,
but each folder is listed only once, under its own path if that is inside the tree. Names that begin with a dot are
skipped. Images are ordered by folder and then by name, byte by byte, independently of the file system.

A cached listing is valid as long as every folder is unchanged: adding, removing or renaming anything in a folder
changes its time stamps, and the time stamps of all folders are compared.
"""

from __future__ import annotations

import hashlib
import os
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from asterism.data.sources.index_cache import Arrays, Names, read_index, settled, user_cache_file, write_index
from asterism.images.decode import SUFFIXES

REMEMBER_FROM = 10_000  # images; listing fewer is so fast that a cache is not worthwhile

_SUFFIXES = frozenset(suffix.encode() for suffix in SUFFIXES)
_VERSION = hashlib.blake2b(b"1 " + b" ".join(sorted(_SUFFIXES)), digest_size=8).hexdigest()


@dataclass(frozen=True)
class Listing:
    """Images by number. Paths are relative, with forward slashes, as the file system's bytes."""

    folders: Names  # those with images in them, sorted
    first: NDArray[np.int64]  # number of each folder's first image, and at the end the number of images
    files: Names  # folder after folder
    visited: Names  # every folder, with or without images; the first is the root, named ""
    others: tuple[int, str] = (0, "")  # files that are not images: their number and an example

    def __len__(self) -> int:
        return len(self.files)

    def folder(self, index: int) -> int:
        """The position in `folders` of the folder that holds an image."""
        return int(np.searchsorted(self.first, index, side="right")) - 1

    def path(self, index: int) -> bytes:
        folder = self.folders[self.folder(index)]
        return folder + b"/" + self.files[index] if folder else self.files[index]

    def fingerprint(self) -> str:
        """A hash of every path."""
        digest = hashlib.blake2b(digest_size=8)
        for part in (self.folders.blob, self.first.astype("<i8").tobytes(), self.files.blob):
            digest.update(len(part).to_bytes(8) + part)
        return digest.hexdigest()

    @property
    def nbytes(self) -> int:
        return self.first.nbytes + sum(len(n.blob) + 8 * len(n) for n in (self.folders, self.files, self.visited))


def list_images(root: Path) -> Listing:
    """All images below a folder; from the cache if nothing has changed."""
    place = os.fsencode(root.resolve())
    cache = user_cache_file("listings", place)
    cached = _recall(cache, place)
    if cached is not None:
        return cached
    checked_at = time.time_ns()
    walk = _Walk(place)
    listing = walk.listing()
    if len(listing) >= REMEMBER_FROM and not walk.closed:
        _remember(cache, place, listing, walk.stamps(listing.visited), checked_at)
    return listing


@dataclass
class _Walk:
    """One pass over a tree."""

    root: bytes
    images: dict[bytes, bytes] = field(default_factory=dict)  # folder -> sorted names, joined by NUL
    stamp: dict[bytes, tuple[int, int, int]] = field(default_factory=dict)
    closed: list[bytes] = field(default_factory=list)  # folders without read permission
    others: int = 0
    other: bytes = b""

    def __post_init__(self) -> None:
        seen: set[tuple[int, int]] = set()
        folders, links = [b""], list[bytes]()
        while folders or links:
            if not folders:  # links last: a folder inside the tree is listed under its own path
                links.sort(reverse=True)
                folders.append(links.pop())
            folder = folders.pop()
            try:
                status = os.stat(self._absolute(folder))  # noqa: PTH116  (bytes)
                identity = (status.st_dev, status.st_ino)
                if identity in seen:
                    continue
                seen.add(identity)
                self.stamp[folder] = _stamp(status)
                self._read(folder, folders, links)
            except PermissionError:
                self.closed.append(folder)
            except FileNotFoundError:
                continue  # removed during the pass
        for folder in self.closed:
            warnings.warn(f"skipped {os.fsdecode(self._absolute(folder))}: no permission to read it", stacklevel=4)

    def _read(self, folder: bytes, folders: list[bytes], links: list[bytes]) -> None:
        names = []
        prefix = folder + b"/" if folder else b""
        with os.scandir(self._absolute(folder)) as entries:
            for entry in entries:
                name = entry.name
                if name[:1] == b".":
                    continue
                if _is_folder(entry):
                    (links if entry.is_symlink() else folders).append(prefix + name)
                elif name[name.rfind(b".") :].lower() in _SUFFIXES:
                    names.append(name)
                else:
                    self.others += 1
                    self.other = prefix + name
        if names:
            names.sort()
            self.images[folder] = b"\0".join(names) + b"\0"

    def _absolute(self, folder: bytes) -> bytes:
        return self.root + b"/" + folder if folder else self.root

    def listing(self) -> Listing:
        folders = sorted(self.images)
        counts = [self.images[folder].count(b"\0") for folder in folders]
        return Listing(
            folders=Names.of(folders),
            first=np.concatenate(([0], np.cumsum(counts, dtype=np.int64))).astype(np.int64),
            files=Names(b"".join(self.images[folder] for folder in folders)),
            visited=Names.of(sorted(self.stamp)),
            others=(self.others, os.fsdecode(self.other)),
        )

    def stamps(self, visited: Names) -> NDArray[np.int64]:
        return np.array([self.stamp[visited[i]] for i in range(len(visited))], dtype=np.int64)


def _is_folder(entry: os.DirEntry[bytes]) -> bool:
    """Needs no system call, except for links. A broken link counts as a file and is reported when it is read."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def _stamp(status: os.stat_result) -> tuple[int, int, int]:
    """Changes with a folder's entries. Copying tools may reset mtime, but not ctime; a new folder has another inode."""
    return status.st_mtime_ns, status.st_ctime_ns, status.st_ino & (1 << 63) - 1


def _remember(cache: Path, place: bytes, listing: Listing, stamps: NDArray[np.int64], checked_at: int) -> None:
    if settled(stamps[:, :2], checked_at):
        write_index(
            cache,
            {
                "version": np.array(_VERSION),
                "place": _array(place),
                "folders": _array(listing.folders.blob),
                "first": listing.first,
                "files": _array(listing.files.blob),
                "visited": _array(listing.visited.blob),
                "stamps": stamps,
            },
        )


def _recall(cache: Path, place: bytes) -> Listing | None:
    arrays = read_index(cache)
    if arrays is None or not _is_whole(arrays, place):
        return None
    folders, files, visited = (Names(arrays[name].tobytes()) for name in ("folders", "files", "visited"))
    first, stamps = arrays["first"].astype(np.int64), arrays["stamps"]
    if first.shape != (len(folders) + 1,) or first[-1] != len(files) or stamps.shape != (len(visited), 3):
        return None
    for index, expected in enumerate(stamps.tolist()):
        try:
            status = os.stat(place + b"/" + visited[index])  # noqa: PTH116  (bytes)
        except OSError:
            return None
        if list(_stamp(status)) != expected:
            return None
    return Listing(folders, first, files, visited)


def _is_whole(arrays: Arrays, place: bytes) -> bool:
    """Whether a cached listing has all its parts, in this version, for this folder."""
    parts = {"version", "place", "folders", "first", "files", "visited", "stamps"}
    return parts <= arrays.keys() and str(arrays["version"]) == _VERSION and arrays["place"].tobytes() == place


def _array(data: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(data, dtype=np.uint8)
