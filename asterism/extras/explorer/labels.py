"""Labels given while exploring: in memory and, if a folder may be written to, in an append-only log.

A line of the log is a change: {"keys": [...], "label": "red" or null}. It is on disk before the change is answered, so
an answered label is found again after a kill, at the next start, and by another explorer of the same folder. A line
without an end was never answered, and is removed by the next change.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from asterism.errors import UserError
from asterism.files import flush, locked, open_for_appending
from asterism.inputs import parse_json

LOG = "labels.jsonl"


class Labels:
    """The label of each labelled image, in the order in which they were given; safe for threads."""

    def __init__(self, keys: Sequence[str] = (), log: Path | None = None) -> None:
        self._keys, self._log = keys, log
        self._rows = {key: row for row, key in enumerate(keys)}
        self._of: dict[str, str] = {}  # by key, since a log may name images of other collections
        self._read = 0  # bytes of the log
        self._guard = threading.RLock()
        if log is not None and log.exists():
            with self.changing():
                pass

    @contextlib.contextmanager
    def changing(self) -> Iterator[Callable[[Sequence[int], str | None], None]]:
        """A function that labels images, or with None removes their labels.

        Changes come one after the other, each after all earlier ones, also those of other explorers of the folder.
        """
        with self._guard, contextlib.ExitStack() as stack:
            if self._log is not None:
                stack.enter_context(locked(self._log))
                self._catch_up(self._log)
            yield self._give

    def all(self) -> dict[int, str]:
        """By row of the collection."""
        return {self._rows[key]: label for key, label in self.by_key().items() if key in self._rows}

    def by_key(self) -> dict[str, str]:
        """Those of other collections, too."""
        with self._guard:
            return dict(self._of)

    def _give(self, rows: Sequence[int], label: str | None) -> None:
        keys = [self._keys[row] for row in rows]
        if self._log is not None:
            self._append(self._log, json.dumps({"keys": keys, "label": label}).encode() + b"\n")
        self._apply(keys, label)

    def _apply(self, keys: Sequence[str], label: str | None) -> None:
        for key in keys:
            self._of.pop(key, None)
            if label is not None:
                self._of[key] = label

    def _catch_up(self, log: Path) -> None:
        if log.stat().st_size < self._read:  # somebody began a new one
            self._of, self._read = {}, 0
        with log.open("rb") as file:
            file.seek(self._read)
            *lines, rest = file.read().split(b"\n")
        for line in lines:
            self._apply(*_change(line, log))
            self._read += len(line) + 1
        if rest:
            os.truncate(log, self._read)

    def _append(self, log: Path, line: bytes) -> None:
        try:
            with open_for_appending(log) as file:
                if file.write(line) < len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(log))
                os.fsync(file.fileno())
            if self._read == 0:
                flush(log.parent)
        except OSError:
            with contextlib.suppress(OSError):
                os.truncate(log, self._read)
            raise
        self._read += len(line)


def _change(line: bytes, log: Path) -> tuple[list[str], str | None]:
    try:
        change = parse_json(line)
        keys, label = change["keys"], change["label"]
        if all(isinstance(key, str) for key in keys) and isinstance(label, str | None):
            return keys, label
    except (ValueError, TypeError, KeyError):
        pass
    raise UserError(f"{log} is damaged: {line[:60]!r} is not a change of labels; remove this line")
