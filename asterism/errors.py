"""Errors that a user can fix. The command line prints them without a traceback and exits with code 2."""

from __future__ import annotations

import difflib
import errno
import os
import re
from collections.abc import Iterable


class UserError(Exception):
    """A mistake in the user's input: the message names the value, what is allowed, and the fix."""


class MissingExtra(UserError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"this needs the package {package!r}: pip install 'asterism[{extra}]'")


def unknown(kind: str, value: str, allowed: Iterable[str]) -> UserError:
    """The error for an unknown name, with the nearest known names."""
    names = {name.rpartition(".")[2]: name for name in sorted(allowed)}  # a common prefix would make all names similar
    near = difflib.get_close_matches(value.rpartition(".")[2], names, n=3, cutoff=0.6)
    if near:
        hint = f"did you mean {' or '.join(repr(names[name]) for name in near)}?"
    else:
        hint = f"choose from: {', '.join(names.values())}"
    return UserError(f"unknown {kind} {value!r}; {hint}")


class Interrupted(Exception):
    """Training stopped on request and saved its state; `exit_code` follows the shell's convention, 128 + signal."""

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal_number


def explain_system_error(error: BaseException) -> str | None:
    """One sentence for an error of the file system or of memory: what failed, where, and the fix.

    None for everything else. Libraries in other languages drop the number of an error but keep the system's message.
    """
    if isinstance(error, MemoryError) or _NO_MEMORY.search(str(error)):
        return f"not enough memory ({reason_of(error)}); use a smaller batch size, smaller images or a smaller network"
    if isinstance(error, RuntimeError) and str(error).startswith(_LINK_CIRCLE):  # pathlib, before Python 3.13
        error = OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(error).removeprefix(_LINK_CIRCLE).strip("'"))
    number = _number(error)
    if number is None:
        return reason_of(error) if isinstance(error, OSError) else None
    names = [os.fspath(name) for name in _file_names(error)]
    place = " and ".join(
        name.decode("utf-8", "backslashreplace") if isinstance(name, bytes) else name for name in names
    )
    said = f"{os.strerror(number)}: {place}" if place else reason_of(error)
    if number in (errno.EACCES, errno.EPERM):
        return f"no permission for {place or 'a file'} ({os.strerror(number)}); check its permissions"
    what, fix = _FIXES.get(number, ("", ""))
    return f"{what} ({said}); {fix}" if what else said


def reason_of(error: BaseException) -> str:
    """An error in a few words: the system's message, or the first line of the library's."""
    text = getattr(error, "strerror", None) or str(error).strip() or type(error).__name__
    return str(text).splitlines()[0][:300]


_NO_MEMORY = re.compile(r"can't allocate memory|not enough memory|out of memory|Cannot allocate memory", re.IGNORECASE)
_LINK_CIRCLE = "Symlink loop from "
_FAILURES = ("EIO", "ESTALE", "ETIMEDOUT", "ENXIO", "ENODEV", "EREMOTEIO", "EHOSTDOWN", "ENOTCONN", "EBUSY")
_FIXES = {
    errno.ENOSPC: ("the disk is full", "free some space or write elsewhere, and run the command again"),
    errno.EDQUOT: ("your share of the disk is used up", "free some space or write elsewhere, and run it again"),
    errno.EROFS: ("the file system is read-only", "write to another place with --out"),
    errno.ENOENT: ("no such file or folder", "check the path"),
    errno.ENOTDIR: ("a part of the path is a file, not a folder", "choose another path"),
    errno.EISDIR: ("there is a folder where a file is expected", "choose another path"),
    errno.EEXIST: ("there is already something with this name", "choose another path"),
    errno.ENAMETOOLONG: ("the path is too long", "use a shorter name"),
    errno.ELOOP: ("symbolic links point to each other in a circle", "remove one of them"),
    errno.EMFILE: ("too many files are open", "raise the limit with `ulimit -n 4096`, or use fewer workers"),
    errno.ENOTEMPTY: ("the folder is not empty", "choose another path"),
    errno.EFBIG: ("a file may not become so large", "raise the limit with `ulimit -f unlimited`, or write elsewhere"),
    **{
        getattr(errno, name): ("the disk or the network drive failed", "check it, and run the command again")
        for name in _FAILURES
        if hasattr(errno, name)  # not every system has them all
    },
}


def _number(error: BaseException) -> int | None:
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    text = str(error)
    if match := re.search(r"\(os error (\d+)\)", text):
        return int(match[1])
    return next((number for number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS) if os.strerror(number) in text), None)


def _file_names(error: BaseException) -> list[str]:
    names = (getattr(error, name, None) for name in ("filename", "filename2"))
    return [os.fsdecode(name) for name in names if isinstance(name, str | bytes) and name]
