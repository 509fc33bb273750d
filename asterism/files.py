"""Writing files safely: atomically, and by one process at a time."""

from __future__ import annotations

import importlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file that replaces `path` atomically. After an error nothing has changed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name[:100]}.", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o666 & ~_umask())  # temporary files are private; results get the usual permissions
        flush(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a file atomically: a reader sees the old file or the new one, never part of it."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextmanager
def filling(folder: Path) -> Iterator[Path]:
    """A temporary folder whose files move to `folder` on success: all in one step if `folder` is new or empty.

    Files of the same names are replaced; other files in `folder` stay.
    """
    with scratch_folder(folder) as scratch:
        temporary = scratch / "files"
        temporary.mkdir()
        yield temporary
        if not folder.is_symlink() and (not folder.exists() or not any(folder.iterdir())):
            temporary.replace(folder)
            return
        for file in sorted(temporary.rglob("*")):
            target = folder / file.relative_to(temporary)
            if file.is_file():
                target.parent.mkdir(parents=True, exist_ok=True)
                file.replace(target)


@contextmanager
def scratch_folder(near: Path) -> Iterator[Path]:
    """A private folder on the file system of `near`, deleted at the end."""
    near.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{near.name[:100]}.", dir=near.parent) as name:
        yield Path(name)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file `path`; other processes on this machine wait for it. A crash releases it too."""
    fcntl = importlib.import_module("fcntl")
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def flush(path: Path) -> None:
    """Force a file, or a folder's entries, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
