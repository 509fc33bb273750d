"""What must not have changed for work on a source's images to be still good: their files, by size and time."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from asterism.data.sources.folder import Folder
from asterism.data.sources.landmarks import Landmarks
from asterism.data.sources.segmented import Segmented
from asterism.data.sources.shards import Shards
from asterism.data.sources.source import Source


def stamp(source: Source) -> str:
    """Differs whenever the images may. A fingerprint names the data on every machine; this also notices that a file
    was overwritten under the same name on this one."""
    digest = hashlib.blake2b(source.fingerprint.encode(), digest_size=16)
    for path in _files(source):
        status = path.stat()
        digest.update(f"{path} {status.st_size} {status.st_mtime_ns}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _files(source: Source) -> Iterable[Path]:
    if isinstance(source, Folder):
        root = source.root.absolute()
        return (root / os.fsdecode(source.listing.path(index)) for index in range(len(source)))
    if isinstance(source, Segmented):
        return (path for item in source.items for path in (item.image, item.mask) if isinstance(path, Path))
    if isinstance(source, (Shards, Landmarks)):
        return source.files
    inner = getattr(source, "source", None)
    return () if inner is None else _files(inner)
