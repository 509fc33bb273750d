"""Writing files safely: complete or not at all, private until complete, and by one process at a time.

Everything temporary is next to its target, readable only by its owner, and has an unpredictable name that must be new:
a link planted under the name is never followed. Its writer holds a lock on it. The next writer of the same target
deletes what has no lock, which a killed process has left behind.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

_MARK = ".asterism-tmp"  # ends the name of everything temporary
_LONGEST = 100  # bytes of the target's name in a temporary name; file systems allow 255 in all
_SAFE = os.O_CLOEXEC | os.O_NOFOLLOW


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file that replaces `path` atomically. After an error nothing has changed."""
    with _parents_of(path), _temporary(path, _new_file) as temporary:
        yield temporary
        temporary.chmod(0o666 & ~_UMASK)
        flush(temporary)
        temporary.replace(path)
        flush_names(path.parent)


def write_text(path: Path, text: str) -> None:
    """Write a file atomically: a reader sees the old file or the new one, never part of it."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")  # names of files may not be text


def open_for_appending(path: Path) -> FileIO:
    """The end of a file, unbuffered; the file is created if there is none. A link under its name is not followed."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | _SAFE, 0o666)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise OSError(error.errno, "it is a link, which is not followed; remove it", str(path)) from None
    return FileIO(handle, "ab")


@contextmanager
def filling(folder: Path) -> Iterator[Path]:
    """A temporary folder whose content becomes that of `folder` on success; after an error nothing has changed.

    A new folder appears with all its files at once. In a folder that exists, files of the same names are replaced, and
    other files stay.
    """
    if folder.is_dir():
        with scratch_folder(folder / folder.name) as temporary:  # on its file system, which may not be its parent's
            yield temporary
            _flush_all(temporary)
            _move_files(temporary, folder)
    else:
        with scratch_folder(folder) as temporary:
            yield temporary
            temporary.chmod(0o777 & ~_UMASK)
            _flush_all(temporary)
            temporary.rename(folder)
            flush_names(folder.parent)


@contextmanager
def scratch_folder(near: Path) -> Iterator[Path]:
    """A private folder on the file system of `near`, deleted at the end."""
    with _parents_of(near), _temporary(near, _new_folder) as folder:
        yield folder


@contextmanager
def private_folder() -> Iterator[Path]:
    """A private folder for files that are not kept, where the system has its temporary files."""
    with scratch_folder(Path(tempfile.gettempdir()) / "asterism") as folder:
        yield folder


@contextmanager
def locked(path: Path) -> Iterator[int]:
    """Hold the lock file `path`; other processes on this machine wait for it. A crash releases it too, unless another
    process has inherited the descriptor, which is given."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = os.open(path, os.O_RDWR | os.O_CREAT | _SAFE, 0o666)
    try:
        _flock(lock)
        yield lock
    finally:
        release(lock)


def release(handle: int) -> None:
    """Close what nothing was written to. A failure changes nothing, and must not look like one of what was done."""
    with contextlib.suppress(OSError):
        os.close(handle)


@contextmanager
def concerning(path: Path) -> Iterator[None]:
    """Errors of the system that name no file, such as those of a write, get this name."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def is_temporary(path: Path) -> bool:
    """Whether this is an unfinished file of ours, perhaps of a process that was killed."""
    return path.name.startswith(".") and path.name.endswith(_MARK)


def flush(path: Path) -> None:
    """Force a file, or a folder's entries, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with concerning(path):
            os.fsync(descriptor)
    finally:
        release(descriptor)


def flush_names(folder: Path) -> None:
    """Force what was created, renamed and deleted in a folder to disk, where the file system can. It has happened, so a
    failure is none of what was done."""
    with contextlib.suppress(OSError):
        flush(folder)


def discard(path: Path) -> None:
    """Delete a file or folder that others read: it vanishes at once, and a process that is killed leaves no part."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path.rename(_temporary_name(path)))
    else:
        path.unlink(missing_ok=True)


def delete_leftovers(folder: Path) -> None:
    """Delete what killed processes have left in a folder: everything temporary that is not locked."""
    _delete_leftovers(folder, "")


def _flush_all(folder: Path) -> None:
    """Several at a time, which disks write together."""
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(flush, [folder, *(path for path in folder.rglob("*") if not path.is_symlink())]))


@contextmanager
def _parents_of(path: Path) -> Iterator[None]:
    """Create the folders above `path`. After an error, those that are still empty are removed again."""
    missing = [folder for folder in path.parents if not folder.exists()]
    try:
        if missing:
            path.parent.mkdir(parents=True, exist_ok=True)
        for folder in missing:
            flush_names(folder.parent)
        with concerning(path):
            yield
    except BaseException:
        for folder in missing:
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise


@contextmanager
def _temporary(target: Path, create: Callable[[Path], int]) -> Iterator[Path]:
    """A new temporary file or folder for a target, locked while it is used and deleted at the end."""
    _delete_leftovers(target.parent, _prefix(target))
    try:
        path, lock = _new(target, create)
        try:
            yield path
        finally:
            with contextlib.suppress(OSError):  # what a failing disk does not delete, the next writer will
                _delete(path)
            release(lock)
    except OSError as error:
        if isinstance(error.filename, str) and _MARK in error.filename:
            error.filename = str(target) + error.filename.partition(_MARK)[2]  # the name that the user knows
        raise


def _new(target: Path, create: Callable[[Path], int]) -> tuple[Path, int]:
    while True:
        path = _temporary_name(target)
        lock = create(path)
        with contextlib.suppress(OSError):  # without locks, as on some network drives, leftovers stay
            _flock(lock)
        if _is_at(lock, path):  # else another process saw it before it was locked, and deleted it
            return path, lock
        release(lock)


def _is_at(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.lstat())
    except OSError:
        return False


def _new_file(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _SAFE, 0o600)


def _new_folder(path: Path) -> int:
    while True:
        path.mkdir(mode=0o700)
        try:
            return os.open(path, os.O_RDONLY | os.O_DIRECTORY | _SAFE)
        except FileNotFoundError:  # another process saw it before it was opened, and deleted it
            continue
        except OSError:
            path.rmdir()
            raise


def _temporary_name(target: Path) -> Path:
    return target.with_name(f"{_prefix(target)}{secrets.token_hex(8)}{_MARK}")


def _prefix(target: Path) -> str:
    return f".{os.fsencode(target.name)[:_LONGEST].decode('utf-8', 'ignore')}."


def _delete_leftovers(folder: Path, prefix: str) -> None:
    for entry in list(os.scandir(folder)):
        if not (entry.name.startswith(prefix) and entry.name.endswith(_MARK)):
            continue
        with contextlib.suppress(OSError):  # locked, someone else's, or a link
            found = os.open(entry.path, os.O_RDONLY | os.O_NONBLOCK | _SAFE)
            try:
                _flock(found, wait=False)
                _delete(Path(entry.path))
            finally:
                release(found)


def _delete(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _move_files(source: Path, target: Path) -> None:
    moves = [(file, target / file.relative_to(source)) for file in sorted(source.rglob("*")) if file.is_file()]
    for _, place in moves:
        if place.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(place))
        place.parent.mkdir(parents=True, exist_ok=True)
    for file, place in moves:
        file.replace(place)
    for folder in {place.parent for _, place in moves}:
        flush_names(folder)


def _flock(handle: int, *, wait: bool = True) -> None:
    """Lock an open file or folder until it is closed; BlockingIOError if another process has it and must not wait."""
    fcntl = importlib.import_module("fcntl")
    fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


_UMASK = _umask()  # read once: it can only be read by changing it, for all threads
