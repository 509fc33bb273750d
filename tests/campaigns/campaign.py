"""Runs the command line on generated cases and judges how each one ends.

A case prepares an empty folder and returns the words of a command, which runs in that folder in a process of its own.
It must end in time, within its memory, with an allowed exit code and without a traceback. An exit code of 2 needs one
sentence on stderr, and then nothing in the folder may have changed: neither the output nor the data. After a success
only the case's outputs may have changed. Temporary files must be gone in both cases.

Each campaign is a module with a function `cases(seed) -> Iterable[Case]`, listed in `tests.campaigns.CAMPAIGNS`.
`make campaign` runs all cases; `tests/campaigns/test_campaigns.py` runs a few per cause.
"""

import hashlib
import os
import random
import stat
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path

from tests.campaigns.processes import Ended, execute

GOOD, SKIPPED = "good", "skipped"
_LARGE = 1 << 26  # bytes; larger files, which may be sparse, are not read
Snapshot = dict[str, str]  # by path: what kind of file it is, and a digest of its content


class Unavailable(Exception):
    """A case needs something that this machine does not have, for example the right to mount."""


def _undisturbed(folder: Path) -> AbstractContextManager[None]:
    return nullcontext()


@dataclass(frozen=True)
class Case:
    """One command on one prepared folder. Patterns are of paths in the folder, where * also matches "/"."""

    name: str  # unique in its campaign
    cause: str  # the row of the table
    prepare: Callable[[Path], Sequence[str]]  # fills the empty folder; returns the command without "asterism"
    exits: Sequence[int] = (2,)
    outputs: Sequence[str] = ("out*",)  # may change when the command succeeds
    kept: Sequence[str] = ()  # may change although it fails: results that a repeated command continues
    around: Callable[[Path], AbstractContextManager[None]] = _undisturbed  # the state of the disk while it runs
    inside: Callable[[], None] | None = None  # a fault in the command's own process; a function of a module
    check: Callable[[Path, Ended], str | None] | None = None  # what else is wrong, if anything
    seconds: float = 120.0  # of a command that takes one
    megabytes: int = 2500  # resident
    slow: bool = False  # only in the full campaign


@dataclass(frozen=True)
class Verdict:
    """How a case ended: "good", "skipped" or what went wrong, with the evidence."""

    case: Case
    kind: str
    detail: str = ""
    computed: float = 0.0  # seconds on a processor

    @property
    def passed(self) -> bool:
        return self.kind in (GOOD, SKIPPED)


def run_case(case: Case) -> Verdict:
    with tempfile.TemporaryDirectory(prefix="asterism-campaign-") as name:
        root = Path(name)
        folder, cache, temporary = (root / part for part in ("here", "cache", "tmp"))
        for place in (folder, cache, temporary):
            place.mkdir()
        try:
            words = list(case.prepare(folder))
            with case.around(folder):
                before = snapshot(folder)
                ended = execute(words, folder, case.seconds, case.megabytes, case.inside)
                after = snapshot(folder)
                # timm imports wandb where it is installed, which makes folders and deletes them only at a normal exit
                left = sorted(file.name for file in temporary.iterdir() if "wandb" not in file.name)
                return replace(judge(case, ended, before, after, left, folder), computed=ended.computed)
        except Unavailable as error:
            return Verdict(case, SKIPPED, str(error))


def judge(case: Case, ended: Ended, before: Snapshot, after: Snapshot, left: list[str], folder: Path) -> Verdict:
    """The first of the rules that is broken."""
    if ended.problem:
        return Verdict(case, ended.problem, ended.errors[-500:])
    if "Traceback (most recent call last)" in ended.errors:
        return Verdict(case, "traceback", ended.errors.strip()[-500:])
    if "\x1b" in ended.output + ended.errors:
        return Verdict(case, "control characters reach the terminal", ended.errors[-500:])
    if ended.code < 0:
        return Verdict(case, f"killed by signal {-ended.code}", ended.errors[-500:])
    if ended.code not in case.exits:
        return Verdict(case, f"exit code {ended.code}", (ended.errors or ended.output).strip()[-500:])
    if ended.code == 2 and sum("Error" in line for line in ended.errors.splitlines()) != 1:
        return Verdict(case, "no sentence", ended.errors.strip()[-500:])
    allowed = case.outputs if ended.code == 0 else case.kept
    changed = [
        path
        for path in sorted({*before, *after})
        if before.get(path) != after.get(path) and not any(fnmatch(path, pattern) for pattern in allowed)
    ]
    if changed:
        return Verdict(case, "files changed", ", ".join(changed)[:500])
    if left:
        return Verdict(case, "temporary files left", ", ".join(left)[:500])
    problem = case.check(folder, ended) if case.check else None
    return Verdict(case, "wrong result", problem) if problem else Verdict(case, GOOD, ended.errors.strip()[-500:])


def snapshot(folder: Path) -> Snapshot:
    """Every path below a folder, without following links."""
    found: Snapshot = {}
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(parent) / name
            found[str(path.relative_to(folder))] = _described(path)
    return found


def _described(path: Path) -> str:
    try:
        found = path.lstat()
        mode = found.st_mode
        if stat.S_ISLNK(mode):
            return f"link to {path.readlink()}"
        if stat.S_ISREG(mode) and found.st_size > _LARGE:
            return f"file of {found.st_size} bytes, changed at {found.st_mtime_ns}"
        if stat.S_ISREG(mode):
            with path.open("rb") as file:
                return f"file {hashlib.file_digest(file, 'blake2b').hexdigest()}"
    except OSError as error:
        return f"unreadable: {error.strerror}"
    return "folder" if stat.S_ISDIR(mode) else "special"


def few(cases: Iterable[Case], seed: int, per_cause: int) -> list[Case]:
    """A seeded choice of cases that are not slow, the same number of every cause."""
    by_cause: dict[str, list[Case]] = defaultdict(list)
    for case in cases:
        if not case.slow:
            by_cause[case.cause].append(case)
    choice = random.Random(seed)
    return [case for own in by_cause.values() for case in choice.sample(own, min(per_cause, len(own)))]


def table(verdicts: Sequence[Verdict]) -> str:
    """Counts by cause, as Markdown."""
    rows: dict[str, Counter[str]] = defaultdict(Counter)
    for verdict in verdicts:
        rows[verdict.case.cause][verdict.kind] += 1
    lines = ["| cause | cases | good | bad | what went wrong |", "|---|--:|--:|--:|---|"]
    rows["all"] = sum(rows.values(), Counter())
    for cause, kinds in rows.items():
        bad = {kind: count for kind, count in kinds.most_common() if kind not in (GOOD, SKIPPED)}
        words = [f"{count} {kind}" for kind, count in bad.items()]
        words += [f"({kinds[SKIPPED]} skipped)"] if kinds[SKIPPED] else []
        tried = kinds.total() - kinds[SKIPPED]
        lines.append(f"| {cause} | {tried} | {kinds[GOOD]} | {sum(bad.values())} | {', '.join(words)} |")
    return "\n".join(lines)
