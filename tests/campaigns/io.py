"""Every call of the file system that a command makes, failed in turn: once, from then on, by a kill, by a power loss.

Each command is recorded once (`calls.py`). Then it is run again for each of its calls, which fails. It must succeed
with the same files, or end with a sentence that has a path and a fix and leave what was there before. What a run, a
kill or a power loss leaves must be the old result, or one from which the same command, or its resume, gets the same
files.
"""

import errno
import functools
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.campaigns import calls
from tests.campaigns.calls import FROM_THEN_ON, KILL, LOSSES, ONCE, RECORD, Call, Disk, after_power_loss, read_journal
from tests.campaigns.campaign import Case, Unavailable, snapshot
from tests.campaigns.materials import line, prepared
from tests.campaigns.processes import Ended, execute

_BOARD = "monitor.tensorboard=true"
COMMANDS: dict[str, Sequence[str]] = {
    "pretrain": line("pretrain", "checkpoint.every_steps=1", "checkpoint.keep_last=1", _BOARD),
    "resume": ["pretrain", "--resume", "pretrained", "trainer.devices=1"],
    **{name: line(name, _BOARD) for name in ("finetune", "align")},
    **{
        name: line(name)
        for name in (
            "distill", "predict", "export safetensors", "export timm", "evaluate", "embed npz",
            "embed parquet", "segment", "track", "concepts", "reconstruct", "search html", "search png", "compare",
        )
    },
    "report": ["report", "pretrained"],
}  # fmt: skip
_CHANGING = {"create", "write", "rename", "mkdir", "remove", "truncate", "symlink"}
_ERRORS = {  # in turn
    "read": (errno.ESTALE, errno.EIO),
    "write": (errno.ENOSPC, errno.EIO, errno.EDQUOT),
    "create": (errno.ENOSPC, errno.EIO, errno.EACCES),
    "mkdir": (errno.ENOSPC, errno.ESTALE),
}
_PLACE = re.compile(
    r"\S/\S|\bout\b|\w\.(safetensors|npz|yaml|png)|photos|labelled|captions|frames|examples|trained|tuned"
)
_RUNS = ("pretrain", "finetune", "align", "compare")


@dataclass(frozen=True)
class Recorded:
    """A command that nothing disturbed."""

    name: str
    words: Sequence[str]
    before: Path  # a copy of the folders `here` and `cache`
    calls: Sequence[Call]
    old: dict[str, str]
    new: dict[str, str]  # by file: what it is afterwards; empty if two runs differ in it

    @property
    def is_run(self) -> bool:
        return self.words[0] in _RUNS

    def mixture(self, here: Path) -> str | None:
        """A file that is neither as before nor as afterwards."""
        now = snapshot(here)
        for path in sorted({*self.old, *self.new, *now}):
            known = [state.get(path) for state in (self.old, self.new)]
            if now.get(path) not in known and "" not in known and not _is_ours(path):
                return f"{path} is neither the old nor the new one"
        return None

    def unequal(self, here: Path, *, cleaned: bool = True) -> str | None:
        """A file that is not as after the undisturbed command. cleaned: nothing of another process is left."""
        now = snapshot(here)
        for path in sorted({*self.new, *now}):
            if _is_volatile(path) or (not cleaned and _is_ours(path)):
                continue
            if (path in now) != (path in self.new):
                return f"{path} is {'missing' if path in self.new else 'left'}"
            if self.new[path] not in ("", now[path]):
                return f"{path} differs"
        return None

    def again(self, here: Path) -> list[str]:
        """The words that a user would give next."""
        if self.name == "resume":
            return list(self.words)
        if self.is_run and list((here / "out" / "checkpoints").glob("step-*")):
            return [self.words[0], "--resume", "out"]
        return [*self.words, *([] if self.words[0] in ("evaluate", "compare", "report") else ["--overwrite"])]


def cases(seed: int) -> Iterator[Case]:
    if calls.library() is None:
        yield Case("all", "no C compiler", _unavailable)
        return
    for name in COMMANDS:
        yield from one(name, seed)


def one(name: str, seed: int) -> Iterator[Case]:
    """All cases of a command."""
    recorded = record(name)
    for number, call in enumerate(recorded.calls):
        yield failing(recorded, number, ONCE)
        if call.kind in _CHANGING:
            yield failing(recorded, number, FROM_THEN_ON)
            yield killed(recorded, number)
    yield from _lost(recorded, seed)


def _unavailable(here: Path) -> Sequence[str]:
    raise Unavailable("calls are failed by a library in C, which needs a compiler")


def failing(recorded: Recorded, number: int, mode: int) -> Case:
    """One call fails, or all that change something from there on."""
    call, once = recorded.calls[number], mode == ONCE
    kinds = _ERRORS.get(call.kind, (errno.EIO,))
    error = kinds[number % len(kinds)]

    def check(here: Path, ended: Ended) -> str | None:
        if ended.code == 0:
            return recorded.unequal(here, cleaned=False) if once else recorded.mixture(here)
        if (problem := _flaw(ended.errors)) is not None:
            return problem
        if once and not recorded.is_run:
            return None  # nothing has changed, which the judge has seen
        return _recovered(recorded, here)

    return Case(
        f"{recorded.name}: {number}, {call.kind} of {call.path}: {errno.errorcode[error]}",
        f"{recorded.name}: {'a call fails' if once else 'calls fail from one on'}",
        partial(_restore, recorded),
        exits=(0, 2),
        outputs=("*",),
        kept=("out", "out/*", "pretrained/*") if once and recorded.is_run else () if once else ("*",),
        inside=partial(calls.arm, number, mode, error, os.devnull),
        check=check,
    )


def killed(recorded: Recorded, number: int) -> Case:
    """A kill before a call; then the command is repeated or resumed."""
    call, problems = recorded.calls[number], list[str | None]()

    def prepare(here: Path) -> Sequence[str]:
        words = _restore(recorded, here)
        ended = execute(words, here, inside=partial(calls.arm, number, KILL, 0, os.devnull))
        if ended.code == 0:
            raise Unavailable("the command made fewer calls this time")
        problems.append(None if recorded.is_run else recorded.mixture(here))
        return recorded.again(here)

    return _repeated(
        recorded, f"{recorded.name}: {number}, {call.kind} of {call.path}", "killed at a call", prepare, problems
    )


def lost(recorded: Recorded, number: int, loss: str, seed: int) -> Case:
    """A power loss after so many calls; then the command is repeated or resumed."""
    problems = list[str | None]()

    def prepare(here: Path) -> Sequence[str]:
        _lose_power(recorded, number, here, loss, f"{seed} {number}")
        problems.append(None if recorded.is_run else recorded.mixture(here))
        return recorded.again(here)

    name = f"{recorded.name}: after {number} calls, {loss}"
    return _repeated(recorded, name, "power loss", prepare, problems)


def _repeated(recorded: Recorded, name: str, cause: str, prepare, problems) -> Case:  # type: ignore[no-untyped-def]
    def check(here: Path, ended: Ended) -> str | None:
        return problems[-1] or recorded.unequal(here)

    return Case(name, f"{recorded.name}: {cause}", prepare, exits=(0,), outputs=("*",), check=check)


def _lost(recorded: Recorded, seed: int) -> Iterator[Case]:
    """Power losses that leave different things behind."""
    if recorded.words[0] == "compare":
        return  # its evaluations are processes of their own
    disk, known = Disk(recorded.before), set[str]()
    for number, call in enumerate(recorded.calls, 1):
        disk.do(call)
        if not call.changed or call.kind not in _CHANGING | {"fsync"}:
            continue
        for loss in LOSSES[1:]:
            state = disk.digest(loss, f"{seed} {number}")
            if state not in known:
                known.add(state)
                yield lost(recorded, number, loss, seed)
    yield kept(recorded, seed)


def kept(recorded: Recorded, seed: int) -> Case:
    """A power loss after the end: the result is there."""

    def prepare(here: Path) -> Sequence[str]:
        _lose_power(recorded, len(recorded.calls), here, "what was not flushed", str(seed))
        return ["list", "methods"]

    return Case(
        f"{recorded.name}: after the end", f"{recorded.name}: power loss", prepare, exits=(0,), outputs=(),
        check=lambda here, ended: recorded.unequal(here),
    )  # fmt: skip


@functools.cache
def record(name: str) -> Recorded:
    """Run the command twice, to see what is the same each time."""
    place = Path(tempfile.mkdtemp(prefix="asterism-recorded-"))
    words = COMMANDS[name]
    states = []
    for turn in ("first", "second"):
        here = place / turn / "here"
        here.mkdir(parents=True)
        if turn == "first":
            _prepare(name, here, words)
            old = snapshot(here)
            shutil.copytree(place / "first", place / "before", symlinks=True)
        else:
            shutil.copytree(place / "before", place / turn, symlinks=True, dirs_exist_ok=True)
        journal = place / f"{turn} journal"
        ended = execute(words, here, inside=partial(calls.arm, -1, RECORD, 0, str(journal)))
        assert ended.code == 0, ended.errors
        states.append(snapshot(here))
        if turn == "first":
            recorded = read_journal(journal, place / "first")
    new = {path: state if states[1].get(path) == state else "" for path, state in states[0].items()}
    return Recorded(name, words, place / "before", recorded, old, new)


def _prepare(name: str, here: Path, words: Sequence[str]) -> None:
    prepared(here, words)
    if name == "resume":  # of a run that was killed before its last checkpoint
        run = here / "pretrained"
        shutil.rmtree(run / "checkpoints" / "step-00000002")
        prepared(here, "photos")
    for part in ("cache", "tmp"):
        (here.parent / part).mkdir(exist_ok=True)


def _restore(recorded: Recorded, here: Path) -> Sequence[str]:
    for part in ("here", "cache"):
        shutil.copytree(recorded.before / part, here.parent / part, symlinks=True, dirs_exist_ok=True)
    return recorded.words


def _lose_power(recorded: Recorded, number: int, here: Path, loss: str, seed: str) -> None:
    after_power_loss(recorded.before, recorded.calls[:number], here.parent, loss, seed)
    for left in (here.parent / "tmp").iterdir():  # which systems delete when they start
        shutil.rmtree(left)


def _recovered(recorded: Recorded, here: Path) -> str | None:
    again = recorded.again(here)
    ended = execute(again, here)
    if ended.code != 0:
        return f"then `{' '.join(again)}` failed: {(ended.problem or ended.errors)[-400:]}"
    problem = recorded.unequal(here)
    return f"after `{' '.join(again)}` {problem}" if problem else None


def _flaw(errors: str) -> str | None:
    """What an error's sentence lacks."""
    sentence = next((line for line in errors.splitlines() if "Error" in line), "")
    if not _PLACE.search(sentence):
        return f"no path: {sentence}"
    return None if re.search(r"[;.] \w", sentence) else f"no fix: {sentence}"


def _is_ours(path: str) -> bool:
    """Of a process that did not come to its end."""
    name = path.rpartition("/")[2]
    return name.endswith((".lock", "-tmp")) or name == ".lock" or "-tmp/" in path


def _is_volatile(path: str) -> bool:
    """Whether it names the time, or the command."""
    return "events.out." in path or path.endswith("environment.json")
