"""The record of images that could not be used, and the limit on their number."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from asterism.errors import UserError
from asterism.files import open_for_appending
from asterism.images.bad_image import BadImage

_MIN_SEEN = 1000  # images; a share of fewer says little, since bad images come in clusters


class BadImageLog:
    """`bad_images.jsonl`: one line {"key", "reason"} per bad image, however often it is encountered.

    The share that must not exceed `max_share` is the number of distinct bad images divided by the number of images seen
    so far, clamped to at least 1000 and at most `total`, the size of the source. Several processes may share one file.
    """

    def __init__(self, path: Path, max_share: float, total: int) -> None:
        self._path = path
        self._max_share = max_share
        self._total = total
        self._reasons: dict[str, str] = {}  # by key
        self._position = 0  # in the file; everything before it has been read
        if self._catch_up():
            self._append(b"\n")  # ends a truncated line, so that the next one is not lost with it

    def __len__(self) -> int:
        return len(self._reasons)

    def record(self, bad: Iterable[BadImage], seen: int | None = None) -> None:
        """Append new bad images. `seen`: images seen since the run began; None for the whole source."""
        new = {image.key: image.reason for image in bad if image.key not in self._reasons}
        if not new:
            return
        self._catch_up()
        lines = [
            json.dumps({"key": key, "reason": reason}) + "\n" for key, reason in new.items() if key not in self._reasons
        ]
        self._append("".join(lines).encode())
        self._reasons |= new
        counted = self._total if seen is None else min(self._total, max(seen, _MIN_SEEN))
        if len(self) > self._max_share * counted:
            raise UserError(self._too_many(counted))

    def _append(self, lines: bytes) -> None:
        """Append in a single write, so that lines from several processes do not interleave."""
        try:
            with open_for_appending(self._path) as file:
                file.write(lines)
        except OSError as error:
            raise UserError(f"cannot write {self._path}: {error.strerror}") from None

    def _catch_up(self) -> bool:
        """Read lines written before a restart or by other processes; true if the file ends in a truncated line."""
        if not self._path.exists():
            return False
        with self._path.open("rb") as file:
            file.seek(self._position)
            content = file.read()
        end = content.rfind(b"\n") + 1
        for line in content[:end].splitlines():
            with contextlib.suppress(
                ValueError, KeyError, TypeError, RecursionError
            ):  # a line truncated when the process was killed
                record = json.loads(line)
                self._reasons[str(record["key"])] = str(record["reason"])
        self._position += end
        return end < len(content)

    def _too_many(self, counted: int) -> str:
        (reason, count), *_ = Counter(self._reasons.values()).most_common(1)
        example = next(key for key, value in self._reasons.items() if value == reason)
        return (
            f"{len(self)} of {counted} images ({len(self) / counted:.1%}) cannot be used, more than "
            f"data.max_bad_share = {self._max_share} allows. Most often ({count}): {reason}, as in {example}. All are "
            f"listed in {self._path}: fix or remove them, or set a larger data.max_bad_share"
        )
