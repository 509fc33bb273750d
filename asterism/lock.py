"""One writer at a time: a lock on a run folder or an output file that names its owner.

The lock is a POSIX record lock on a small file. The system releases it when its process ends, however it ends, and
network file systems that support locks share it between machines. Data workers, which are forked, do not inherit it.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import json
import os
import socket
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from asterism.errors import UserError
from asterism.files import release

LOCK_NAME = ".lock"  # in a run folder
_LONGEST = 10_000  # bytes of a lock file that are read
_HELD_BY_OTHERS = (errno.EACCES, errno.EAGAIN)
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)  # the file system has none

# A record lock does not exclude threads of the same process, and closing any descriptor of the file releases it.
_held: dict[Path, int] = {}  # descriptor by lock file
_guard = threading.Lock()


def folder_lock(folder: Path) -> Path:
    """The lock file of a run folder."""
    return folder / LOCK_NAME


def file_lock(path: Path) -> Path:
    """The lock file of an output file, next to it."""
    return path.with_name(f".{path.name[:100]}.lock")


@contextlib.contextmanager
def owned(lock: Path, what: Path) -> Iterator[None]:
    """Own `what` through the lock file `lock`; if another process does, raise a `UserError` that names it."""
    place = _place(lock)
    with _guard:
        if place in _held:
            raise _in_use(what, "this process")
        descriptor = _acquire(lock, what)
        _held[place] = descriptor
    try:
        yield
    finally:
        with _guard:
            with contextlib.suppress(OSError):
                if _is_at(descriptor, lock):  # else its folder was replaced by another, perhaps of another owner
                    lock.unlink()  # before the release: the next owner makes a file of its own
            release(descriptor)
            del _held[place]


def check_unowned(lock: Path, what: Path) -> None:
    """Raise a `UserError` if a process owns `what`, without taking the lock."""
    with _guard:
        if _place(lock) in _held:
            raise _in_use(what, "this process")
        try:
            descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:  # no lock file, or no permission to write, which is reported where something is written
            return
        try:
            if not _lock(descriptor):
                raise _in_use(what, _owner_of(lock))
        finally:
            release(descriptor)


def is_owned(lock: Path) -> bool:
    """Whether this process owns what is now at the place of the lock file: a folder may have been moved or deleted."""
    with _guard:
        descriptor = _held.get(_place(lock))
        return descriptor is not None and _is_at(descriptor, lock)


def _acquire(lock: Path, what: Path) -> int:
    while True:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        try:
            if not _lock(descriptor):
                raise _in_use(what, _owner_of(lock))
            if _is_at(descriptor, lock):  # else its owner has just deleted it
                with contextlib.suppress(OSError):  # on a full disk it locks without a name
                    os.truncate(descriptor, 0)
                    os.pwrite(descriptor, json.dumps(_owner()).encode(), 0)
                return descriptor
        except BaseException:
            release(descriptor)
            raise
        release(descriptor)


def _lock(descriptor: int) -> bool:
    """Lock without waiting; False if another process holds it. Where there are no locks, every process may write."""
    try:
        fcntl = importlib.import_module("fcntl")
    except ImportError:  # Windows
        return True
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _HELD_BY_OTHERS:
            return False
        if error.errno not in _NO_LOCKS:
            raise
    return True


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))  # noqa: PTH116
    except FileNotFoundError:
        return False


def _place(lock: Path) -> Path:
    return lock.parent.resolve() / lock.name


def _owner() -> dict[str, Any]:
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])[:300],
        "since": datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
    }


def _owner_of(lock: Path) -> str:
    """The process that holds the lock. It must be another one: reading its own lock file would release the lock."""
    try:
        with lock.open("rb") as file:
            owner = json.loads(file.read(_LONGEST))
        named = f"process {int(owner['pid'])} on {owner['host']} since {owner['since']} ({owner['command']})"
    except (OSError, ValueError, KeyError, TypeError, RecursionError):  # the owner is writing it at this moment
        return "another process"
    return "".join(character if character.isprintable() else "?" for character in named)


def _in_use(what: Path, owner: str) -> UserError:
    return UserError(f"{what} is being written by {owner}; wait until it ends, stop it, or choose another place")
