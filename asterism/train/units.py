"""Human-readable durations and sizes."""

from __future__ import annotations

import itertools

_TIMES = (("days", 86400), ("h", 3600), ("min", 60), ("s", 1))


def duration(seconds: float) -> str:
    """At most two units: 3 days 4 h, 5 h 10 min, 12 min, 8.0 s, 45 ms."""
    if 0 < seconds < 0.1:
        return f"{1e3 * seconds:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    for (name, length), (smaller, part) in itertools.pairwise(_TIMES):
        if seconds >= length:
            whole, rest = divmod(seconds, length)
            more = int(rest // part)
            if more and whole < 10:
                return f"{int(whole)} {name} {more} {smaller}"
            return f"{round(seconds / length)} {name}"
    return f"{round(seconds)} s"


def size(count: float) -> str:
    """Bytes, in the largest unit that gives at least 1."""
    for unit, length in (("GB", 1e9), ("MB", 1e6)):
        if count >= length:
            return f"{count / length:.1f} {unit}"
    return f"{count / 1e3:.0f} kB"
