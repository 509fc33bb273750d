"""Reading files that a user names: regular files of a bounded size only, so that nothing blocks and nothing is endless.

A pipe would wait for its writer, a device has no end, and a file of many gigabytes does not fit into memory. Images
have their own limits (`asterism.images.limits`), text and JSON those of this file.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from asterism.errors import UserError, reason_of

MAX_TEXT = 64 << 20  # bytes of lists, recipes and class names
_FAILURES = {errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EMFILE, errno.ENFILE, errno.ENOMEM}  # of the machine
_WAITS = (0.05, 0.2, 0.75)  # seconds until a failed read is tried again
MAX_JSON = 4 << 30  # bytes; the largest annotation files of COCO have 0.5 GB

T = TypeVar("T")


class Unreadable(Exception):
    """A file that is not read, and why."""


def user_path(text: str | os.PathLike[str]) -> Path:
    """The path a user wrote, with `~` and `~user` replaced by home folders."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise UserError(f"{os.fspath(text)}: there is no such user; write the path of the folder itself") from None


def is_text(value: str) -> bool:
    """Whether every character is one: JSON and names of files can have halves (lone surrogates) that no file can."""
    return not any("\ud800" <= character <= "\udfff" for character in value)


def as_text(name: str | bytes) -> str:
    r"""A file's name as text that every file can hold: with bytes that are not UTF-8 as in \xe9t\xe9.png."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def output_path(text: str | os.PathLike[str]) -> Path:
    """Where a user wants files. Several libraries cannot open a file whose path is not UTF-8."""
    if not is_text(os.fspath(text)):
        raise UserError(
            f"the path {as_text(os.fspath(text))} is not UTF-8, and could not be read again; choose another --out"
        )
    return Path(text)


def read_regular(path: Path, most: int) -> bytes:
    """The content of a regular file of at most `most` bytes."""
    return tried_again(path, lambda: _read_regular(path, most))


def tried_again(path: Path, read: Callable[[], T]) -> T:
    """What `read` returns of a file; raises `Unreadable` if it cannot be read.

    A failing disk or network drive is tried again for a second, then a `UserError`: an image that cannot be read today
    must not be skipped like a damaged one, which would silently change the result.
    """
    for wait in (*_WAITS, None):
        try:
            return read()
        except OSError as error:
            if error.errno not in _FAILURES:
                raise Unreadable(f"the file cannot be read: {reason_of(error)}") from None
            if wait is None:
                raise UserError(
                    f"cannot read {path}: {reason_of(error)}. The disk, the network drive or the system failed: check "
                    "it and run the command again; if only this file fails, delete it"
                ) from None
            time.sleep(wait)
    raise AssertionError


def _read_regular(path: Path, most: int) -> bytes:
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))  # else opening a pipe waits for its writer
        try:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                kind = "a folder" if stat.S_ISDIR(status.st_mode) else "a pipe or a device"
                raise Unreadable(f"it is {kind}, not a regular file")
            if status.st_size > most:
                raise Unreadable(f"it has {status.st_size:,} bytes, more than the limit of {most:,}")
            with open(handle, "rb", closefd=False) as file:
                return file.read(most + 1)
        finally:
            os.close(handle)
    except ValueError as error:  # a NUL character in the path
        raise Unreadable(f"the file cannot be read: {reason_of(error)}") from None


def read_text(path: Path, most: int = MAX_TEXT) -> str:
    """The text of a UTF-8 file."""
    try:
        return read_regular(path, most).decode("utf-8-sig")
    except Unreadable as error:
        raise UserError(f"cannot read {path}: {error}") from None
    except UnicodeDecodeError as error:
        raise UserError(
            f"cannot read {path}: it is not UTF-8 text (byte {error.start:,}); save it with this encoding"
        ) from None


def read_json(path: Path, most: int = MAX_JSON) -> Any:
    """The content of a JSON file."""
    try:
        return parse_json(read_text(path, most))
    except ValueError as error:
        raise UserError(f"cannot read {path}: it is not valid JSON: {error}") from None


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text; every flaw is a ValueError, also one that Python reports in another way."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
