"""Image files that a list names, in its order."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from asterism.data.sources.source import Sample
from asterism.errors import UserError
from asterism.images.decode import decode


class ListedImages:
    """Files by their paths below a folder; all of them exist."""

    classes = None

    def __init__(self, name: str, folder: Path, paths: Sequence[str], listed_in: Path) -> None:
        missing = [path for path in paths if not is_file(folder / path)]
        if missing:
            more = f" (and {len(missing) - 1:,} more of its {len(paths):,} images)" if len(missing) > 1 else ""
            raise UserError(
                f"{listed_in} names the image {missing[0][:300]!r}, which is not in {folder}{more}; fix the list, or "
                "put the images there"
            )
        self.name = name
        self._folder, self._paths = folder, list(paths)

    @cached_property
    def fingerprint(self) -> str:
        digest = hashlib.blake2b(digest_size=8)
        for path in self._paths:
            digest.update(f"{path}\0{(self._folder / path).stat().st_size}\0".encode("utf-8", "surrogateescape"))
        return digest.hexdigest()

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> Sample:
        if not 0 <= index < len(self):
            raise IndexError(index)
        key = self._paths[index]
        return Sample(decode(self._folder / key, key), key)

    def label(self, index: int) -> int | None:
        return None

    def keys(self) -> list[str]:
        return list(self._paths)

    def files(self) -> list[Path]:
        return [self._folder / path for path in self._paths]


def is_file(path: Path) -> bool:
    """Whether there is such a file; also for names that no file can have."""
    try:
        return path.is_file()
    except OSError:  # for example a name that is too long
        return False
