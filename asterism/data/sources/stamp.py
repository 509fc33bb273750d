"""What must not have changed for work on a source's images to be still good: their files, by size and time."""

from __future__ import annotations

import hashlib
from pathlib import Path

from asterism.data.sources.source import Source


def stamp(source: Source) -> str:
    """Differs whenever the images may. A fingerprint names the data on every machine; this also notices that a file
    was overwritten under the same name on this one."""
    digest = hashlib.blake2b(source.fingerprint.encode(), digest_size=16)
    for path in source.files():
        digest.update(f"{path.absolute()} {_state(path)}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _state(path: Path) -> str:
    try:
        status = path.stat()
    except OSError:
        return "missing"  # such as a link to nowhere, which is reported when it is read
    return f"{status.st_size} {status.st_mtime_ns}"
