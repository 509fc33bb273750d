"""A hash of the state of a source's files, by size and time: cached results are valid while it is unchanged."""

from __future__ import annotations

import hashlib
from pathlib import Path

from asterism.data.sources.source import Source


def stamp(source: Source) -> str:
    """A hash that changes whenever the images may have changed. A fingerprint identifies the data on any machine; the
    stamp also detects that a file was overwritten on this one."""
    digest = hashlib.blake2b(source.fingerprint.encode(), digest_size=16)
    for path in source.files():
        digest.update(f"{path.absolute()} {_state(path)}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _state(path: Path) -> str:
    try:
        status = path.stat()
    except OSError:
        return "missing"  # such as a broken link, which is reported when it is read
    return f"{status.st_size} {status.st_mtime_ns}"
