"""Training, evaluating, embedding and reporting for a long time while everything fails.

    python -m lab.benchmarks.soak --minutes 60

Two things run at once, on a small file system of their own and on images of which every tenth is damaged:

- Commands, one after the other: a run is trained, evaluated, embedded and reported. Every few seconds something
  happens to them: SIGKILL; SIGSTOP and, later, SIGCONT; a full disk (ENOSPC); or a disk that fails (EIO, raised by a
  layer over Python's file functions for every fourth call). A command that ends is repeated until it succeeds, with
  --resume if there is a checkpoint.
- One process that never ends evaluates, embeds and reports in a loop, with the same faults except SIGKILL. Its memory
  and its open files are measured after every round.

The losses, the weights, the scores and the embeddings must equal those of an undisturbed run, bit by bit, and every
command must end with exit code 0, with one sentence and exit code 2, or by our SIGKILL. The small file system needs the
right to mount; without it, ENOSPC comes from the same layer as EIO.
"""

from __future__ import annotations

import argparse
import builtins
import contextlib
import errno
import hashlib
import io
import json
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from tests.campaigns.campaign import Unavailable
from tests.campaigns.disks import small_disk
from tests.campaigns.processes import Ended, execute
from tests.evals.samples import write_colours

_IMAGES = 20  # of each of three colours
_STEPS = 15
_DISK = 8_000  # kilobytes, several times what a run and its report need
_PROTOCOL = ["--protocols", "knn", "knn.k=[5]"]
_TRAINING = [
    "dino",
    "backbone.image_size=16",
    "backbone.patch_size=8",
    "backbone.dim=16",
    "backbone.depth=1",
    "backbone.heads=2",
    f"trainer.steps={_STEPS}",
    "trainer.batch_size=8",
    "method.out_dim=32",
    "method.hidden_dim=32",
    "method.bottleneck_dim=16",
    "method.local_views=0",
    "data.workers=1",
    "data.max_bad_share=0.2",
    "monitor.tensorboard=false",
    "monitor.log_every=1",
    "checkpoint.every_steps=1",
]


def write_damaged_photos(folder: Path) -> Path:
    """Every tenth image is empty, cut off, of another format or noise."""
    files = sorted(write_colours(folder, _IMAGES, size=(16, 16)).rglob("*.png"))
    for number, file in enumerate(files[::10]):
        whole = file.read_bytes()
        file.write_bytes((b"", whole[: len(whole) // 2], b"%!PS-Adobe-3.0", os.urandom(600))[number % 4])
    return folder


# --- faults ----------------------------------------------------------------------------------------------------------


def failing_files(folder: str, flags: str) -> None:
    """Replace Python's file functions in this process: while a file `flags`/EIO or `flags`/ENOSPC exists, every fourth
    call on a path below `folder` raises this error."""
    dice = random.Random(os.urandom(8))

    def failing(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(path: Any, *words: Any, **more: Any) -> Any:
            if isinstance(path, str | os.PathLike) and os.path.abspath(path).startswith(folder):  # noqa: PTH100
                for name in ("EIO", "ENOSPC"):
                    if os.path.exists(f"{flags}/{name}") and dice.random() < 0.25:  # noqa: PTH110
                        number = getattr(errno, name)
                        raise OSError(number, os.strerror(number), os.fspath(path))
            return call(path, *words, **more)

        return wrapped

    for module, names in (
        (os, ("open", "mkdir", "replace", "rename", "unlink")),
        (io, ("open",)),
        (builtins, ("open",)),
    ):
        for name in names:
            setattr(module, name, failing(getattr(module, name)))


@dataclass
class Faults:
    """Disturbs a process every few seconds."""

    disk: Path
    flags: Path
    every: float  # seconds
    kinds: tuple[str, ...]
    mounted: bool
    dice: random.Random
    count: Counter[str] = field(default_factory=Counter)
    _next: float = 0.0
    _undo: Callable[[], None] | None = None

    def __call__(self, pid: int) -> None:
        now = time.monotonic()
        if self._next == 0.0:
            self._next = now + self.dice.uniform(0.3, 2 * self.every)
        if now < self._next:
            return
        if self._undo is not None:
            self.end()
            self._next = now + self.dice.uniform(0.5, 2 * self.every)
            return
        kind = self.dice.choice(self.kinds)
        self.count[kind] += 1
        self._undo = getattr(self, f"_{kind}")(pid)
        self._next = now + (self.dice.uniform(0.3, 2.0) if self._undo else self.dice.uniform(0.5, 2 * self.every))

    def end(self) -> None:
        """End a fault that lasts."""
        if self._undo is not None:
            self._undo()
            self._undo = None

    def _kill(self, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)

    def _stop(self, pid: int) -> Callable[[], None]:
        def send(number: int) -> None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, number)

        send(signal.SIGSTOP)
        return lambda: send(signal.SIGCONT)

    def _no_space(self, pid: int) -> Callable[[], None]:
        if not self.mounted:
            return self._flag("ENOSPC")
        ballast = self.disk / "ballast"
        with contextlib.suppress(OSError), ballast.open("wb") as file:
            while True:
                file.write(bytes(1 << 12))
        return lambda: ballast.unlink(missing_ok=True)

    def _failing_disk(self, pid: int) -> Callable[[], None]:
        return self._flag("EIO")

    def _flag(self, name: str) -> Callable[[], None]:
        (self.flags / name).touch()
        return lambda: (self.flags / name).unlink(missing_ok=True)


@dataclass(frozen=True)
class Disturbance:
    """The faults of the commands, and of the process that never ends."""

    commands: Faults
    live: Faults
    live_pid: int

    def __call__(self, pid: int) -> None:
        self.commands(pid)
        self.live(self.live_pid)

    def end(self) -> None:
        self.commands.end()
        self.live.end()


# --- the commands ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Results:
    """What must not depend on faults."""

    losses: list[tuple[int, float]]
    weights: dict[str, bytes]
    score: float
    embeddings: bytes


def results(folder: Path) -> Results:
    lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    weights = load_file(folder / "run" / "encoder.safetensors")
    return Results(
        losses=[(line["step"], line["loss"]) for line in lines if "loss" in line],
        weights={name: values.tobytes() for name, values in weights.items()},
        score=json.loads((folder / "run" / "eval" / "knn.json").read_text())["values"]["top1_k5"],
        embeddings=np.load(folder / "e.npz")["embeddings"].tobytes(),
    )


def commands(folder: Path, data: Path) -> Iterator[Callable[[], list[str]]]:
    """The words of each command, which depend on what an earlier attempt has left."""

    def train() -> list[str]:
        run = folder / "run"
        if list(run.glob("checkpoints/step-*")):
            return ["pretrain", "--resume", "run"]
        return ["pretrain", *_TRAINING, "--data", str(data), "--out", "run", *(["--overwrite"] if run.exists() else [])]

    yield train
    yield lambda: ["evaluate", "run", "--data", str(data), *_PROTOCOL]
    yield lambda: ["embed", "run", "--data", str(data), "--out", "e.npz", "--overwrite"]
    yield lambda: ["report", "run"]


def temporaries(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob(".*") if path.name.endswith("tmp")]


@dataclass
class Tally:
    """How the commands of all rounds ended."""

    rounds: int = 0
    unequal: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def add(self, words: list[str], ended: Ended) -> None:
        if ended.code == 2 and "Error" in ended.errors and "Traceback" not in ended.errors:
            self.ends["a sentence and exit code 2"] += 1
        elif ended.code == 0:
            self.ends["exit code 0"] += 1
        elif ended.code == -signal.SIGKILL and not ended.problem:
            self.ends["our SIGKILL"] += 1
        else:
            self.ends["wrong"] += 1
            how = f"{ended.problem or ended.code} after {ended.seconds:.0f} s, {ended.computed:.0f} s of them computing"
            self.wrong.append(f"{' '.join(words[:3])}: {how}: {ended.errors[-1500:]}")
            print(f"WRONG {self.wrong[-1]}", flush=True)


def one_round(
    folder: Path, data: Path, tally: Tally, faults: Disturbance | None, inside: Callable[[], None] | None
) -> None:
    for words_of in commands(folder, data):
        while True:
            words = words_of()
            ended = execute(words, folder, 300, inside=inside, watch=faults)
            if faults is not None:
                faults.end()
            tally.add(words, ended)
            if ended.code == 0:
                break


# --- the process that never ends ------------------------------------------------------------------------------------


def live_on(run: str, data: str, place: str, flags: str, log: str) -> None:
    """Evaluate, embed and report in a loop; a line with memory, open files and the end of each round."""
    os.setsid()
    os.environ |= {"XDG_CACHE_HOME": f"{place}/cache", "TMPDIR": place}
    tempfile.tempdir = None
    from asterism import api
    from asterism.errors import UserError

    sys.stdout = sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115
    failing_files(place, flags)
    number = 0
    while True:
        number += 1
        wrong, end, bug = "", "", ""
        try:
            found = api.evaluate(run, data, "knn", out=f"{place}/eval", knn={"k": [5]})["knn"].values["top1_k5"]
            api.embed(run, data, f"{place}/live.npz", overwrite=True)
            vectors = np.load(f"{place}/live.npz")["embeddings"].tobytes()
            api.report(run)
            end = _digest(found, vectors)
        except (UserError, OSError) as error:
            wrong = f"{type(error).__name__}: {str(error)[:200]}"
        except Exception as error:  # a fault must end in one of the above
            wrong, bug = type(error).__name__, traceback.format_exc()
        pages = int(Path("/proc/self/statm").read_text().split()[1]) if Path("/proc/self/statm").exists() else 0
        files = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0  # noqa: PTH208
        line = {
            "round": number,
            "megabytes": pages * 4096 / 1e6,
            "files": files,
            "end": end,
            "error": wrong,
            "bug": bug,
        }
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(handle, f"{json.dumps(line)}\n".encode())
        os.close(handle)


def _digest(score: float, embeddings: bytes) -> str:
    return f"{score} {hashlib.blake2b(embeddings).hexdigest()}"


# --- an hour of it ---------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def disk(folder: Path) -> Iterator[bool]:
    """A small file system, and whether there is one."""
    try:
        with small_disk(folder, _DISK):
            yield True
    except Unavailable:
        yield False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument(
        "--every",
        type=float,
        help="mean seconds between faults  [default: an eighth of an undisturbed round, at least 3]",
    )
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that nothing stays mounted
    with tempfile.TemporaryDirectory(prefix="asterism-soak-") as name:
        home = Path(name).resolve()
        for place in ("calm", "disturbed", "live", "flags"):
            (home / place / "here").mkdir(parents=True)
        data, calm = write_damaged_photos(home / "photos"), home / "calm" / "here"
        start = time.monotonic()
        one_round(calm, data, Tally(), None, None)
        seconds, expected = time.monotonic() - start, results(calm)
        chosen.every = chosen.every or max(3.0, seconds / 8)
        print(
            f"undisturbed: {len(expected.losses)} losses, k-NN {expected.score:.1f} %, {seconds:.0f} s a round; "
            f"a fault every {chosen.every:.0f} s",
            flush=True,
        )
        return soak(home, data, expected, chosen)


def soak(home: Path, data: Path, expected: Results, chosen: argparse.Namespace) -> int:
    folder, place, flags = home / "disturbed" / "here", home / "live" / "here", home / "flags"
    log = home / "live.jsonl"
    tally, start = Tally(), time.monotonic()
    with disk(folder) as mounted, disk(place) as live_mounted:
        dice = random.Random(chosen.seed)
        lasting = ("stop", "no_space", "failing_disk")
        faults = Faults(folder, flags / "here", chosen.every, ("kill", *lasting), mounted, dice)
        live_faults = Faults(place, flags / "here", chosen.every, lasting, live_mounted, random.Random(chosen.seed + 1))
        inside = partial(failing_files, str(home / "disturbed"), str(flags / "here"))
        shutil.copytree(home / "calm/here/run", place / "run", symlinks=True)
        live = get_context("forkserver").Process(
            target=live_on, args=(str(place / "run"), str(data), str(place), str(flags / "here"), str(log))
        )
        live.start()

        assert live.pid is not None
        disturbance = Disturbance(faults, live_faults, live.pid)
        try:
            while time.monotonic() - start < 60 * chosen.minutes:
                for left in folder.iterdir():
                    shutil.rmtree(left) if left.is_dir() else left.unlink()
                one_round(folder, data, tally, disturbance, inside)
                tally.rounds += 1
                tally.unequal += results(folder) != expected
                if temporaries(folder):  # which a failing disk may have refused to delete: the next writer does
                    one_round(folder, data, Tally(), None, None)
                if left_behind := temporaries(folder):
                    tally.wrong.append(f"left behind: {left_behind}")
                    print(f"WRONG {tally.wrong[-1]}", flush=True)
                print(f"{(time.monotonic() - start) / 60:.1f} min: {_words(tally, faults)}", flush=True)
        finally:
            disturbance.end()
            still_alive = live.is_alive()
            live.kill()
            live.join()
    equal = _digest(expected.score, expected.embeddings)
    return conclude(tally, faults, live_faults, log, equal, still_alive, time.monotonic() - start)


def conclude(
    tally: Tally, faults: Faults, live: Faults, log: Path, equal: str, still_alive: bool, seconds: float
) -> int:
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    quarter = max(1, len(lines) // 4)
    print(f"\n{seconds / 60:.1f} minutes, {faults.count.total() + live.count.total()} faults")
    print(f"commands:  {_words(tally, faults)}")
    good = [line for line in lines if not line["error"]]
    different = sum(line["end"] != equal for line in good)
    bugs = [line["bug"] for line in lines if line["bug"]]
    for bug in bugs:
        print(f"WRONG in the process that never ends: {bug}")
    print(f"one process: {len(lines)} rounds, {len(good)} complete, {different} unequal; the others ended by faults")
    print(f"             {dict(live.count)}, still running: {still_alive}")
    for what in ("megabytes", "files"):
        first, last = ([line[what] for line in part] for part in (lines[:quarter], lines[-quarter:]))
        peak = max(line[what] for line in lines)
        print(f"             {what}: median {statistics.median(first):.0f} in the first quarter, "
              f"{statistics.median(last):.0f} in the last, at most {peak:.0f}")  # fmt: skip
    return int(bool(tally.unequal or tally.wrong or different or bugs or not still_alive))


def _words(tally: Tally, faults: Faults) -> str:
    return f"{tally.rounds} runs, {tally.unequal} unequal; {dict(faults.count)}; ends: {dict(tally.ends)}"


if __name__ == "__main__":
    sys.exit(main())
