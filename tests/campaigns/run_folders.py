"""Run folders that were edited, damaged or mixed up, and every command that reads one.

A damage changes a finished run of two steps, which has checkpoints of both and one evaluation. A command on it succeeds
where the damage does not matter, else it ends with a sentence. In the last cases disks and processes fail while the
second step is trained; then the first checkpoint must be good.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from asterism.data import workers
from asterism.train import checkpoint, processes
from asterism.train.pretraining import Pretraining
from tests.campaigns import materials
from tests.campaigns.campaign import Case
from tests.campaigns.disks import no_large_files, read_only, small_disk
from tests.campaigns.processes import Ended

Change = Callable[[Path], object]  # of a run folder

_LAST, _BEFORE = "checkpoints/step-00000002", "checkpoints/step-00000001"
_STATE = f"{_LAST}/state.json"
_COMMANDS: dict[str, tuple[list[str], list[str]]] = {  # the words, and what may change when they succeed
    "resume": (["pretrain", "--resume", "run"], ["run", "run/*"]),
    "evaluate": (["evaluate", "run", "--data", "photos", "knn.k=2"], ["run/eval", "run/eval/*"]),
    "evaluate without data": (["evaluate", "run", "knn.k=2"], ["run/eval", "run/eval/*"]),
    "report": (["report", "run"], ["run/report.html"]),
    "embed": (["embed", "run", "--data", "photos", "--out", "out.npz"], ["out*"]),
    "concepts": (["concepts", "run", "photos/red/000.png", "--out", "out"], ["out*"]),
    "init": (["pretrain", *materials.DINO, "--data", "photos", "--init", "run", "--out", "out"], ["out*"]),
    "overwrite": (["pretrain", *materials.DINO, "--data", "photos", "--out", "run", "--overwrite"], ["run", "run/*"]),
    "compare": (["compare", "study.yaml", "--out", "out", "--jobs", "1"], ["out*"]),
}
_STUDY = """
steps: 2
runs:
  mine: {model: run}
evaluations:
  - {data: photos, protocols: [knn], settings: [knn.k=2], columns: {k-NN: knn.top1_k2}}
"""


@dataclass(frozen=True)
class Damage:
    """A change of a run folder, the commands to try, and those that must not succeed."""

    cause: str
    name: str
    change: Change
    commands: Sequence[str] = ("resume", "report", "evaluate")
    refused: Sequence[str] = ()


def cases(seed: int) -> Iterator[Case]:
    for damage in (*_contents(), *_checkpoints(seed), *_recipes(seed), *_values(seed), *_mixed()):
        for command in damage.commands:
            yield _case(damage, command)
    yield from _disturbed()


def _case(damage: Damage, command: str) -> Case:
    words, outputs = _COMMANDS[command]

    def prepare(here: Path) -> Sequence[str]:
        materials.photos(here / "photos")
        damage.change(materials.run(here / "run"))
        if command == "compare":
            (here / "study.yaml").write_text(_STUDY)
        return words

    exits = (2,) if command in damage.refused else (0, 2)
    return Case(
        f"{damage.name}, {command}", damage.cause, prepare, exits, outputs, seconds=300, slow=command == "compare"
    )


# Files with other content, or something else in their place


CONTENTS: dict[str, bytes] = {
    "empty": b"",
    "a list": b"[]",
    "null": b"null",
    "a number": b"5",
    "a string": b'"text"',
    "cut off": b'{"step": 1, "met',
    "nested deeply": b"[" * 50_000,
    "not UTF-8": b"\xff\xfe\x00\x01{}",
    "NUL bytes": bytes(4096),
    "a huge number": b'{"step": ' + b"9" * 5000 + b"}",
}
_FILES = {
    "config.yaml": ("resume", "report", "evaluate without data"),
    "environment.json": ("resume", "report"),
    "metrics.jsonl": ("resume", "report"),
    "bad_images.jsonl": ("resume",),
    "eval/knn.json": ("report", "evaluate"),
    "encoder.safetensors": ("resume", "embed", "init", "concepts", "compare"),
    _STATE: ("resume", "report"),
    f"{_LAST}/method.safetensors": ("resume", "report"),
    f"{_LAST}/optimizer.safetensors": ("resume",),
    f"{_LAST}/checksums.txt": ("resume",),
}
PLACES: dict[str, Change] = {
    "missing": lambda path: None,
    "a folder": lambda path: path.mkdir(),
    "a full folder": lambda path: (path.mkdir(), (path / "x").write_text("x")),
    "a dangling link": lambda path: path.symlink_to("nowhere"),
    "a link to itself": lambda path: path.symlink_to(path.name),
}


def _contents() -> Iterator[Damage]:
    for file, commands in _FILES.items():
        for name, content in CONTENTS.items():
            yield Damage("wrong content", f"{file} {name}", written(file, content), commands)
        for name, make in PLACES.items():
            yield Damage("something else in place of a file", f"{file} {name}", replaced(file, make), commands)
    for folder in ("checkpoints", "eval", _LAST):
        for name, make in (*PLACES.items(), ("a file", lambda path: path.write_text("x"))):
            yield Damage("something else in place of a folder", f"{folder} {name}", replaced(folder, make))
    yield Damage("something else in place of a file", "last a folder", replaced("checkpoints/last", PLACES["a folder"]))
    yield Damage(
        "something else in place of a file", "report.html a folder", replaced("report.html", PLACES["a folder"])
    )


def written(file: str, content: bytes) -> Change:
    def change(run: Path) -> None:
        (run / file).write_bytes(content)

    return change


def replaced(file: str, make: Change) -> Change:
    def change(run: Path) -> None:
        path = run / file
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        make(path)

    return change


# Checkpoints with flipped bits and wrong values


WRONG: tuple[Any, ...] = (None, [], {}, "x", -1, 0, 1.5, 1e400, True, 10**30)


def _checkpoints(seed: int) -> Iterator[Damage]:
    choice = random.Random(seed)
    for file in ("method.safetensors", "optimizer.safetensors", "state.json", "checksums.txt"):
        for number in range(4):
            name = f"{file}, bit {number}"
            yield Damage("flipped bits", name, flipped(f"{_LAST}/{file}", choice.random()), ("resume", "report"))
    for number in range(6):
        change = flipped("encoder.safetensors", choice.random() ** 3)  # more often in the header
        yield Damage("flipped bits", f"encoder.safetensors, bit {number}", change, ("embed",))
    for key in ("step", "steps", "images", "batch_size", "data", "recipe", "format", "version"):
        for wrong in choice.sample(WRONG, 4):
            name = f"state.json {key} = {wrong!r}"[:60]
            yield Damage("wrong values in a checkpoint", name, _state(key, wrong), ("resume",))
    yield Damage("wrong values in a checkpoint", "of a newer version", _state("format", 99), ("resume",), ("resume",))
    yield Damage(
        "wrong values in a checkpoint", "another number of images", _state("images", 9), ("resume",), ("resume",)
    )
    for name in ("step-00000009", "step-99999999999999999999", "step-x", "damaged-step-00000002"):
        yield Damage(
            "wrong values in a checkpoint", f"an empty {name}", _empty(f"checkpoints/{name}"), ("resume", "report")
        )
    damaged = both(flipped(f"{_LAST}/method.safetensors", 0.9), flipped(f"{_BEFORE}/method.safetensors", 0.9))
    yield Damage("flipped bits", "both checkpoints", damaged, ("resume",), ("resume",))


def flipped(file: str, place: float) -> Change:
    """place: share of the file."""

    def change(run: Path) -> None:
        path = run / file
        if not path.exists():
            return
        content = bytearray(path.read_bytes())
        content[int(place * (len(content) - 1))] ^= 1 << (len(content) % 7)
        path.write_bytes(content)

    return change


def _state(key: str, value: Any) -> Change:
    """A changed state whose checksum is right, so that only the value is wrong."""

    def change(run: Path) -> None:
        path = run / _STATE
        path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
        sums = run / _LAST / "checksums.txt"
        if sums.exists():
            lines = [line for line in sums.read_text().splitlines() if not line.endswith("state.json")]
            lines.append(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  state.json")
            sums.write_text("\n".join(lines) + "\n")

    return change


def _empty(folder: str) -> Change:
    return lambda run: (run / folder).mkdir()


def both(*changes: Change) -> Change:
    return lambda run: [change(run) for change in changes]


# Recipes that were edited


_EDITS: dict[str, Any] = {
    "trainer.seed": 1,
    "trainer.steps": 40,
    "trainer.batch_size": 2,
    "trainer.precision": "bf16",
    "optim.lr": 0.5,
    "optim.weight_decay": 0.3,
    "optim.betas": [0.5, 0.5],
    "method.out_dim": 16,
    "method.momentum": 0.5,
    "backbone.dim": 32,
    "data.mean": [0.1, 0.1, 0.1],
    "data.shuffle": False,
}


def _recipes(seed: int) -> Iterator[Damage]:
    for key, value in _EDITS.items():
        for newest in (True, False):  # a finished run, and one that has a step to go
            name = f"{key} = {value}, {'finished' if newest else 'unfinished'}"
            change = edited(key, value) if newest else both(edited(key, value), _without_last)
            yield Damage("another recipe", name, change, ("resume",), ("resume",))
    for key in ("method", "data", "optim", "trainer", "backbone", "monitor", "checkpoint"):
        yield Damage("wrong values in a recipe", f"section {key} gone", edited(key, _GONE), ("resume", "report"))
    choice = random.Random(seed)
    leaves = [f"{section}.{key}" for section, keys in _LEAVES.items() for key in keys]
    for key in leaves:
        for wrong in choice.sample(WRONG, 2):
            name = f"{key} = {wrong!r}"[:60]
            command = choice.choice(("resume", "report", "evaluate without data"))
            yield Damage("wrong values in a recipe", name, edited(key, wrong), (command,))


_GONE = object()
_LEAVES = {
    "method": ("name", "out_dim", "momentum"),
    "backbone": ("name", "image_size", "patch_size", "depth", "heads"),
    "data": ("path", "split", "workers", "prefetch", "std"),
    "optim": ("lr", "betas", "clip", "warmup_epochs"),
    "trainer": ("epochs", "steps", "batch_size", "accumulate", "devices", "seed"),
    "checkpoint": ("every_steps", "keep_last"),
    "monitor": ("log_every", "knn"),
}


def edited(key: str, value: Any) -> Change:
    def change(run: Path) -> None:
        path = run / "config.yaml"
        values = yaml.safe_load(path.read_text())
        *parents, last = key.split(".")
        node = values
        for parent in parents:
            node = node[parent]
        if value is _GONE:
            node.pop(last)
        else:
            node[last] = value
        path.write_text(yaml.safe_dump(values))

    return change


def _without_last(run: Path) -> None:
    shutil.rmtree(run / _LAST)


# Metrics and results with wrong values


def _values(seed: int) -> Iterator[Damage]:
    choice = random.Random(seed)
    for key in ("step", "loss", "lr", "images_per_second", "knn", "warning", "view_retrieval"):
        for wrong in choice.sample(WRONG, 4):
            name = f"metrics.jsonl {key} = {wrong!r}"[:60]
            yield Damage("wrong values in metrics", name, _logged({key: wrong}), ("report", "resume"))
    for path in ("protocol", "values", "values.top1_k2", "constants", "model", "model.name", "model.step", "test",
                 "test.images", "baselines", "notes", "seconds", "versions"):  # fmt: skip
        for wrong in choice.sample(WRONG, 3):
            yield Damage("wrong values in results", f"eval {path} = {wrong!r}"[:60], _result(path, wrong), ("report",))


def _logged(record: Mapping[str, Any]) -> Change:
    def change(run: Path) -> None:
        path = run / "metrics.jsonl"
        lines = [json.dumps(json.loads(line) | record) for line in path.read_text().splitlines()]
        path.write_text("\n".join(lines) + "\n")

    return change


def _result(key: str, value: Any) -> Change:
    def change(run: Path) -> None:
        path = run / "eval" / "knn.json"
        content = json.loads(path.read_text())
        *parents, last = key.split(".")
        node = content
        for parent in parents:
            node = node[parent]
        node[last] = value
        path.write_text(json.dumps(content))

    return change


# Parts of other runs, and kills


def _mixed() -> Iterator[Damage]:
    everything = tuple(_COMMANDS)
    yield Damage("parts of runs", "undamaged", lambda run: None, everything)
    yield Damage("parts of runs", "without checkpoints", lambda run: shutil.rmtree(run / "checkpoints"), everything)
    yield Damage("parts of runs", "only a recipe", _only("config.yaml"), everything, ("resume", "evaluate", "embed"))
    yield Damage("parts of runs", "only weights", _only("encoder.safetensors"), everything, ("resume", "report"))
    yield Damage("parts of runs", "nothing", _only(), everything, ("resume", "report", "embed"))
    yield Damage("parts of runs", "killed before the export", _stale, ("resume",))
    yield Damage("parts of runs", "killed in a checkpoint", _half_written, ("resume", "report"))
    yield Damage("parts of runs", "without the link", lambda run: (run / "checkpoints/last").unlink(), ("resume",))
    yield Damage(
        "parts of runs", "a leftover lock", lambda run: (run / ".lock").write_text("{}"), ("resume", "overwrite")
    )
    yield Damage(
        "parts of runs", "a lock that is a folder", lambda run: (run / ".lock").mkdir(), ("resume", "overwrite")
    )
    yield Damage("parts of runs", "a lock that is a link", lambda run: (run / ".lock").symlink_to("x"), ("resume",))
    yield Damage("parts of runs", "data gone", edited("data.path", "nowhere"), everything, ("resume",))


def _only(*names: str) -> Change:
    def change(run: Path) -> None:
        for path in run.iterdir():
            if path.name not in names:
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    return change


def _stale(run: Path) -> None:
    """The last checkpoint exists, and the encoder does not yet."""
    os.unlink(run / "encoder.safetensors")  # noqa: PTH108


def _half_written(run: Path) -> None:
    temporary = run / "checkpoints" / ".step-00000003.tmp"
    shutil.copytree(run / _LAST, temporary)
    (temporary / "state.json").unlink()


# Training that is disturbed


def _disturbed() -> Iterator[Case]:
    for devices in (1, 2):
        case = partial(
            Case,
            prepare=partial(_unfinished, devices),
            outputs=("run", "run/*"),
            kept=("run/metrics.jsonl", "run/encoder.safetensors"),  # which is exported again: it was of step 2
            check=_first_is_good,
            seconds=300,
            slow=devices == 2,
        )
        where = f"{devices} processes"
        for kilobytes in (0, 8, 40, 80, 160):
            disk = partial(_full_disk, kilobytes)
            yield case(f"{kilobytes} kB left, {where}", "full and failing disks", exits=(0, 2), around=disk)
        yield case(f"read-only, {where}", "full and failing disks", around=lambda here: read_only(here / "run"))
        yield case(f"files cannot grow, {where}", "full and failing disks", inside=no_large_files)
        yield case(
            f"the data vanishes, {where}", "disturbed processes", inside=_remove_the_data, kept=("run/*", "photos*")
        )
        yield case(f"a data worker is killed, {where}", "disturbed processes", inside=_kill_a_worker)
    yield case("a process is killed", "disturbed processes", inside=partial(_signal_the_other, signal.SIGKILL))
    yield case("a process hangs", "disturbed processes", inside=partial(_signal_the_other, signal.SIGSTOP))


def _unfinished(devices: int, here: Path) -> Sequence[str]:
    run = materials.run(here / "run")
    materials.photos(here / "photos")
    _without_last(run)
    return ["pretrain", "--resume", "run", "data.path=photos", f"trainer.devices={devices}", "data.workers=1"]


def _full_disk(kilobytes: int, here: Path) -> AbstractContextManager[None]:
    return small_disk(here / "run", kilobytes)


def _first_is_good(here: Path, ended: Ended) -> str | None:
    folder = here / "run" / "checkpoints"
    checkpoint.verify(folder / "step-00000001")
    left = [path.name for path in (here / "run").rglob(".*")]
    return f"left behind: {left}" if left else None


def _remove_the_data() -> None:
    """After the images were listed and before they are read."""
    batches = Pretraining.batches

    def vanished(self: Pretraining, start: int, fabric: Any) -> Any:
        shutil.rmtree("photos", ignore_errors=True)
        return batches(self, start, fabric)

    Pretraining.batches = vanished  # type: ignore[method-assign]


def _kill_a_worker() -> None:
    workers._start_worker = _die


def _die(number: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _signal_the_other(number: signal.Signals) -> None:
    """Send a signal to the second process when it is ready."""
    processes._SILENCE = 3.0
    ready = processes._Watch.wait_until_ready

    def disturbed(self: processes._Watch) -> None:
        ready(self)
        for other in self._others:
            other.process.send_signal(number)

    processes._Watch.wait_until_ready = disturbed  # type: ignore[method-assign]
