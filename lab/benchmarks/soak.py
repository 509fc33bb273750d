"""Training, evaluating, embedding and reporting for a long time while everything fails.

    python -m lab.benchmarks.soak --minutes 60

Three things run at once, on small file systems of their own and on images of which every tenth is damaged:

- Commands, one after the other: a run is trained, in every second round by two processes, then evaluated, embedded and
  reported. Every few seconds something happens to them: SIGKILL or SIGTERM; SIGSTOP and, later, SIGCONT; either for one
  process alone, a rank or a data worker; a full disk (ENOSPC); a disk that fails (EIO, raised by a layer over Python's
  file functions for every fourth call); or another name for the folder of the run. A command that ends is repeated
  until it succeeds, with --resume if there is a checkpoint. Before some of these, all images are replaced by others of
  the same names, and the resume must be refused.
- One process that never ends evaluates, embeds and reports in a loop, with the same faults except kills and names. Its
  memory and its open files are measured after every round.
- Clients label images in the explorer, whose server is killed, stopped and gets full and failing disks. An answered
  label must be found later.

The losses, the weights, the scores and the embeddings must equal those of an undisturbed run, bit by bit, and every
command must end with exit code 0, with one sentence and exit code 2, or by our signals. The small file system needs the
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
from PIL import Image, ImageOps
from safetensors.numpy import load_file

from lab.benchmarks.soak_labels import LabelClients
from tests.campaigns.campaign import Unavailable
from tests.campaigns.disks import small_disk
from tests.campaigns.processes import Ended, execute
from tests.evals.samples import write_colours

_IMAGES = 20  # of each of three colours
_STEPS = 15
_DISK = 8_000  # kilobytes, several times what a run and its report need
_PATIENCE = 0.5  # minutes without a sign of life after which a rank is given up
_LONG_STOP = 50.0  # seconds, more than that
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


@contextlib.contextmanager
def replaced_images(data: Path) -> Iterator[None]:
    """Other images under the same names."""
    aside, others = data.with_name("aside"), data.with_name("others")
    data.rename(aside)
    shutil.copytree(aside, others)
    for file in others.rglob("*.png"):
        with contextlib.suppress(OSError), Image.open(aside / file.relative_to(others)) as image:
            ImageOps.invert(image.convert("RGB")).save(file)
    others.rename(data)
    try:
        yield
    finally:
        shutil.rmtree(data)
        aside.rename(data)


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
    wrong: list[str] = field(default_factory=list)
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
        lasts = _LONG_STOP if kind == "stop_one" and self.dice.random() < 0.2 else self.dice.uniform(0.3, 2.0)
        self._next = now + (lasts if self._undo else self.dice.uniform(0.5, 2 * self.every))

    def end(self) -> None:
        """End a fault that lasts."""
        if self._undo is not None:
            self._undo()
            self._undo = None

    def _kill(self, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)

    def _terminate(self, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)

    def _kill_one(self, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._one_of(pid), signal.SIGKILL)

    def _stop(self, pid: int) -> Callable[[], None]:
        return self._stopped(-pid)

    def _stop_one(self, pid: int) -> Callable[[], None]:
        return self._stopped(self._one_of(pid))

    def _stopped(self, pid: int) -> Callable[[], None]:
        def send(number: int) -> None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

        send(signal.SIGSTOP)
        return lambda: send(signal.SIGCONT)

    def _one_of(self, leader: int) -> int:
        """A rank or a data worker."""
        found = [leader]
        for place in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError, IndexError):
                if int((place / "stat").read_text().rpartition(")")[2].split()[2]) == leader:
                    found.append(int(place.name))
        return self.dice.choice(found)

    def _rename(self, pid: int) -> Callable[[], None] | None:
        run, aside = self.disk / "run", self.disk / "aside"
        if not run.exists():
            return None
        run.rename(aside)

        def undo() -> None:
            if (run / "config.yaml").exists():  # a new run, of a command that had not looked before
                shutil.rmtree(aside)
                return
            with contextlib.suppress(OSError):
                run.rmdir()
            if run.exists():
                self.wrong.append(f"written where a run was moved away: {sorted(run.rglob('*'))}")
                print(f"WRONG {self.wrong[-1]}", flush=True)
                shutil.rmtree(run)
            aside.rename(run)

        return undo

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


def commands(folder: Path, data: Path, devices: int) -> Iterator[Callable[[], list[str]]]:
    """The words of each command, which depend on what an earlier attempt has left."""

    def train() -> list[str]:
        run = folder / "run"
        if list(run.glob("checkpoints/step-*")):
            return ["pretrain", "--resume", "run"]
        words = ["pretrain", *_TRAINING, f"trainer.devices={devices}", "--data", str(data), "--out", "run"]
        return [*words, *(["--overwrite"] if run.exists() else [])]

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

    @property
    def bad(self) -> bool:
        return bool(self.unequal or self.wrong)

    def add(self, words: list[str], ended: Ended) -> None:
        if ended.code == 2 and "Error" in ended.errors and "Traceback" not in ended.errors:
            self.ends["a sentence and exit code 2"] += 1
        elif ended.code == 0:
            self.ends["exit code 0"] += 1
        elif ended.code in (-signal.SIGKILL, -signal.SIGTERM, 128 + signal.SIGTERM) and not ended.problem:
            self.ends[f"our {signal.Signals(abs(ended.code) % 128).name}"] += 1
        else:
            self.ends["wrong"] += 1
            how = f"{ended.problem or ended.code} after {ended.seconds:.0f} s, {ended.computed:.0f} s of them computing"
            self.wrong.append(f"{' '.join(words[:3])}: {how}: {ended.errors[-1500:]}")
            print(f"WRONG {self.wrong[-1]}", flush=True)


def one_round(
    folder: Path,
    data: Path,
    devices: int,
    tally: Tally,
    faults: Disturbance | None,
    inside: Callable[[], None] | None,
) -> None:
    environment = {} if faults is None else {"ASTERISM_PATIENCE": str(_PATIENCE)}
    for words_of in commands(folder, data, devices):
        while True:
            words = words_of()
            if faults is not None and "--resume" in words and faults.commands.dice.random() < 0.2:
                check_other_images_are_refused(words, folder, data, tally)
            ended = execute(words, folder, 300, inside=inside, watch=faults, environment=environment)
            if faults is not None:
                faults.end()
            tally.add(words, ended)
            if ended.code == 0:
                break


def check_other_images_are_refused(words: list[str], folder: Path, data: Path, tally: Tally) -> None:
    with replaced_images(data):
        ended = execute(words, folder, 300)
    if ended.code == 2 and "Traceback" not in ended.errors:
        tally.ends["other images refused"] += 1
    else:
        tally.wrong.append(f"other images were not refused: {ended.code} {ended.errors[-1500:]}")
        print(f"WRONG {tally.wrong[-1]}", flush=True)


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
        help="mean seconds between faults  [default: a third of an undisturbed round of two processes, at least 3]",
    )
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that nothing stays mounted
    with tempfile.TemporaryDirectory(prefix="asterism-soak-") as name:
        home = Path(name).resolve()
        for place in ("calm 2", "calm 1", "disturbed", "live", "labels", "flags"):
            (home / place / "here").mkdir(parents=True)
        data = write_damaged_photos(home / "photos")
        shutil.copytree(data, home / "photos of others")
        expected = {}
        for devices in (1, 2):
            calm, start = home / f"calm {devices}" / "here", time.monotonic()
            one_round(calm, data, devices, Tally(), None, None)
            seconds, expected[devices] = time.monotonic() - start, results(calm)
            print(
                f"undisturbed, {devices} processes: {len(expected[devices].losses)} losses, "
                f"k-NN {expected[devices].score:.1f} %, {seconds:.0f} s a round",
                flush=True,
            )
        chosen.every = chosen.every or max(3.0, seconds / 3)
        print(f"a fault every {chosen.every:.0f} s", flush=True)
        return soak(home, data, expected, chosen)


def soak(home: Path, data: Path, expected: dict[int, Results], chosen: argparse.Namespace) -> int:
    folder, place, labels = (home / name / "here" for name in ("disturbed", "live", "labels"))
    flags, calm, others = home / "flags", home / "calm 1" / "here", home / "photos of others"
    log = home / "live.jsonl"
    tally, start = Tally(), time.monotonic()
    with disk(folder) as mounted, disk(place) as live_mounted, disk(labels) as labels_mounted:
        dice, another, third = (random.Random(chosen.seed + number) for number in range(3))
        lasting = ("stop", "no_space", "failing_disk")
        kinds = ("kill", "kill_one", "terminate", "stop_one", "rename", *lasting)
        faults = Faults(folder, flags / "here", chosen.every, kinds, mounted, dice)
        live_faults = Faults(place, flags / "here", chosen.every, lasting, live_mounted, another)
        label_faults = Faults(labels, flags / "here", chosen.every, lasting, labels_mounted, third)
        inside = partial(failing_files, str(home / "disturbed"), str(flags / "here"))
        shutil.copytree(calm / "run", place / "run", symlinks=True)
        live = get_context("forkserver").Process(
            target=live_on, args=(str(place / "run"), str(others), str(place), str(flags / "here"), str(log))
        )
        live.start()
        failing = partial(failing_files, str(labels.parent), str(flags / "here"))
        clients = LabelClients(calm / "run", others, labels, failing, label_faults, third)

        assert live.pid is not None
        disturbance = Disturbance(faults, live_faults, live.pid)
        try:
            while time.monotonic() - start < 60 * chosen.minutes:
                for left in folder.iterdir():
                    shutil.rmtree(left) if left.is_dir() else left.unlink()
                devices = 1 + tally.rounds % 2
                one_round(folder, data, devices, tally, disturbance, inside)
                tally.rounds += 1
                tally.unequal += results(folder) != expected[devices]
                if temporaries(folder):  # which a failing disk may have refused to delete: the next writer does
                    one_round(folder, data, devices, Tally(), None, None)
                if left_behind := temporaries(folder):
                    tally.wrong.append(f"left behind: {left_behind}")
                    print(f"WRONG {tally.wrong[-1]}", flush=True)
                minutes = (time.monotonic() - start) / 60
                print(f"{minutes:.1f} min: {_words(tally, faults)}; explorer: {clients.words}", flush=True)
        finally:
            disturbance.end()
            clients.end()
            label_faults.end()
            still_alive = live.is_alive()
            live.kill()
            live.join()
    equal = _digest(expected[1].score, expected[1].embeddings)
    count = sum(each.count.total() for each in (faults, live_faults, label_faults)) + clients.servers
    print(f"\n{(time.monotonic() - start) / 60:.1f} minutes, {count} faults")
    print(f"commands:  {_words(tally, faults)}")
    print(f"explorer:  {clients.words}; {dict(label_faults.count)}")
    return int(conclude(live_faults, log, equal, still_alive) or tally.bad or bool(faults.wrong or clients.wrong))


def conclude(live: Faults, log: Path, equal: str, still_alive: bool) -> bool:
    """Print how the process that never ends did, and whether anything was wrong."""
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    quarter = max(1, len(lines) // 4)
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
    return bool(different or bugs or not still_alive)


def _words(tally: Tally, faults: Faults) -> str:
    return f"{tally.rounds} runs, {tally.unequal} unequal; {dict(faults.count)}; ends: {dict(tally.ends)}"


if __name__ == "__main__":
    sys.exit(main())
