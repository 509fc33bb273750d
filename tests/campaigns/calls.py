"""Calls of the file system that a command makes below a folder: a journal of them, one that fails, and what is on the
disk after a power loss at any of them.

A small library (calls.c) is preloaded into the commands' processes, so that calls of libraries in other languages count
as well. It needs a C compiler.
"""

import ctypes
import functools
import hashlib
import os
import random
import struct
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

KINDS = ("read", "create", "write", "fsync", "rename", "close", "mkdir", "remove", "truncate", "symlink")
RECORD, ONCE, FROM_THEN_ON, KILL = range(4)
_HEAD = struct.Struct("6q")


@dataclass(frozen=True)
class Call:
    """One call on a path below the folder."""

    kind: str  # of KINDS; "read" is an open that only reads
    changed: bool  # whether it changed the file system
    path: str  # relative to the folder
    other: str  # the new name, or what a link points to
    offset: int
    data: bytes


@functools.cache
def library() -> Path | None:
    """The library, built once per process; None without a compiler."""
    place = Path(tempfile.mkdtemp(prefix="asterism-calls-")) / "calls.so"
    source = Path(__file__).with_name("calls.c")
    try:
        subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", place, source, "-ldl"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return place


def arm(at: int, mode: int, error: int, journal: str) -> None:
    """In the process of a command: its call number `at` next to or below its folder fails, or all are recorded."""
    handle = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    ctypes.CDLL(None).arm(os.fsencode(Path.cwd().parent), ctypes.c_long(at), mode, error, handle)


def read_journal(journal: Path, folder: Path) -> list[Call]:
    """The calls of a recorded command, also those that failed: a command asks for much that does not exist."""
    content, at, calls = journal.read_bytes(), 0, []
    while at < len(content):
        kind, changed, offset, *lengths = _HEAD.unpack_from(content, at)
        at += _HEAD.size
        parts = []
        for length in lengths:
            parts.append(content[at : at + length])
            at += length
        path, other = (_relative(os.fsdecode(part), folder) for part in parts[:2])
        calls.append(Call(KINDS[kind], bool(changed), path, other, offset, parts[2]))
    return calls


def _relative(path: str, folder: Path) -> str:
    return os.path.relpath(path, folder) if path.startswith(f"{folder}/") else path


# -- the power-loss model


@dataclass
class _File:
    """What programs see of a file, and what the disk has of it."""

    content: bytearray = field(default_factory=bytearray)
    flushed: bytes = b""


@dataclass
class _Link:
    target: str


class _Folder(dict):  # type: ignore[type-arg]  # of entries by name
    """What programs see in a folder, and what the disk has of it."""

    def __init__(self) -> None:
        super().__init__()
        self.flushed: dict[str, _Entry] = {}


_Entry = _File | _Link | _Folder


class Disk:
    """A folder in memory that knows what is on the disk: what was there at the start, and what was flushed since."""

    def __init__(self, folder: Path) -> None:
        self.root = _read(folder)

    def do(self, call: Call) -> None:
        if not call.changed or call.kind in ("read", "close"):
            return
        if call.path == ".":
            self._on_file(self.root, call)
            return
        parent, name = self._parent(call.path)
        match call.kind:
            case "create":
                found = parent.get(name)
                if isinstance(found, _File):
                    found.content.clear()
                else:
                    parent[name] = _File()
            case "mkdir":
                parent[name] = _Folder()
            case "remove":
                parent.pop(name, None)
            case "symlink":
                parent[name] = _Link(call.other)
            case "rename":
                target, new = self._parent(call.other)
                target[new] = parent.pop(name)
            case "write" | "truncate" | "fsync":
                self._on_file(parent.get(name), call)

    def _on_file(self, found: _Entry | None, call: Call) -> None:
        if isinstance(found, _Folder):  # flushed
            found.flushed = dict(found)
        elif isinstance(found, _File):
            if call.kind == "write":
                found.content.extend(bytes(max(0, call.offset - len(found.content))))
                found.content[call.offset : call.offset + len(call.data)] = call.data
            elif call.kind == "truncate":
                found.content.extend(bytes(max(0, call.offset - len(found.content))))
                del found.content[call.offset :]
            else:
                found.flushed = bytes(found.content)

    def _parent(self, path: str) -> tuple[_Folder, str]:
        *folders, name = os.path.normpath(path).split("/")
        at: _Entry = self.root
        for folder in folders:
            assert isinstance(at, _Folder)
            at = at[folder]
            if isinstance(at, _Link):
                raise ValueError(f"{path} goes through a link")
        assert isinstance(at, _Folder)
        return at, name

    def remains(self, loss: str, seed: str) -> dict[str, bytes | str | None]:
        """What is left after a power loss, by path: the content of a file, the target of a link, None for a folder."""
        return dict(_remains(self.root, "", loss, random.Random(seed)))

    def digest(self, loss: str, seed: str) -> str:
        return hashlib.blake2b(repr(self.remains(loss, seed)).encode()).hexdigest()


def _read(folder: Path) -> _Folder:
    found = _Folder()
    for path in folder.iterdir():
        if path.is_symlink():
            found[path.name] = _Link(str(path.readlink()))
        elif path.is_dir():
            found[path.name] = _read(path)
        else:
            content = path.read_bytes()
            found[path.name] = _File(bytearray(content), content)
    found.flushed = dict(found)
    return found


LOSSES = ("nothing", "what was not flushed", "contents that were not flushed", "some of what was not flushed")


def _remains(folder: _Folder, path: str, loss: str, choice: random.Random) -> Iterator[tuple[str, bytes | str | None]]:
    """Between two flushes disks order names and contents as they like: a file system with a journal keeps the newest
    names of files that are empty, another one the old names."""
    _, strict, contents, some = LOSSES
    old = loss == strict or (loss == some and choice.random() < 0.5)
    for name, entry in (folder.flushed if old else folder).items():
        place = f"{path}{name}"
        if isinstance(entry, _Folder):
            yield place, None
            yield from _remains(entry, f"{place}/", loss, choice)
        elif isinstance(entry, _Link):
            yield place, entry.target
        elif loss in (strict, contents):
            yield place, entry.flushed
        elif loss == some and entry.flushed != entry.content:
            yield place, bytes(entry.content[: choice.randint(0, len(entry.content))])
        else:
            yield place, bytes(entry.content)


def after_power_loss(before: Path, calls: Sequence[Call], target: Path, loss: str, seed: str) -> None:
    """Put into a folder what a disk has after these calls on a copy of `before`, and a power loss. loss: of LOSSES."""
    disk = Disk(before)
    for call in calls:
        disk.do(call)
    for name, content in disk.remains(loss, seed).items():
        if content is None:
            (target / name).mkdir(exist_ok=True)
        elif isinstance(content, str):
            (target / name).symlink_to(content)
        else:
            (target / name).write_bytes(content)
