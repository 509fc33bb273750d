"""The record of images that could not be used, and the point at which there are too many of them."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from asterism.errors import UserError
from asterism.images.bad_image import BadImage

_FIRST_LOOK = 1000  # images; a share of fewer says little, as bad images come in clusters


class BadImageLog:
    """`bad_images.jsonl`: one line {"key", "reason"} for each bad image, however often it is met.

    The share that must not exceed `max_share` is: different bad images, over images seen so far, which count as at
    least 1000 and at most as `total`, the size of the source. Several processes may keep one file.
    """

    def __init__(self, path: Path, max_share: float, total: int) -> None:
        self._path = path
        self._max_share = max_share
        self._total = total
        self._reasons: dict[str, str] = {}  # by key
        self._position = 0  # in the file, up to which it is known
        if self._catch_up():
            self._append(b"\n")  # ends a line that was cut off, lest the next one be lost with it

    def __len__(self) -> int:
        return len(self._reasons)

    def record(self, bad: Iterable[BadImage], seen: int | None = None) -> None:
        """Write down what is new. `seen`: images gone through since the run began; None for the whole source."""
        new = {image.key: image.reason for image in bad if image.key not in self._reasons}
        if not new:
            return
        self._catch_up()
        lines = [
            json.dumps({"key": key, "reason": reason}) + "\n" for key, reason in new.items() if key not in self._reasons
        ]
        self._append("".join(lines).encode())
        self._reasons |= new
        looked_at = self._total if seen is None else min(self._total, max(seen, _FIRST_LOOK))
        if len(self) > self._max_share * looked_at:
            raise UserError(self._too_many(looked_at))

    def _append(self, lines: bytes) -> None:
        """In one write at the end of the file, so that lines of several processes do not mix."""
        try:
            with self._path.open("ab", buffering=0) as file:
                file.write(lines)
        except OSError as error:
            raise UserError(f"cannot write {self._path}: {error.strerror}") from None

    def _catch_up(self) -> bool:
        """Read what was written before a restart, or meanwhile by others; true when it ends in a piece of a line."""
        if not self._path.exists():
            return False
        with self._path.open("rb") as file:
            file.seek(self._position)
            content = file.read()
        end = content.rfind(b"\n") + 1
        for line in content[:end].splitlines():
            with contextlib.suppress(ValueError, KeyError, TypeError):  # a line that was cut off by a kill
                record = json.loads(line)
                self._reasons[record["key"]] = record["reason"]
        self._position += end
        return end < len(content)

    def _too_many(self, looked_at: int) -> str:
        (reason, count), *_ = Counter(self._reasons.values()).most_common(1)
        example = next(key for key, value in self._reasons.items() if value == reason)
        return (
            f"{len(self)} of {looked_at} images ({len(self) / looked_at:.1%}) cannot be used, more than "
            f"data.max_bad_share = {self._max_share} allows. Most often ({count}): {reason}, as in {example}. All are "
            f"listed in {self._path}: mend or remove them, or allow a larger data.max_bad_share"
        )
