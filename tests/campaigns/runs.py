"""Runs of every kind that were edited, damaged, mixed up or disturbed, and every command that reads one.

A damage changes a finished run of two steps, which has checkpoints of both and one evaluation. A command on it succeeds
where the damage does not matter, else it ends with a sentence. While disks and processes fail, the second step is
trained; then the first checkpoint must be good. A run killed at any instant and then resumed has the bytes of an
undisturbed one.
"""

import contextlib
import functools
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from asterism.data import workers
from asterism.finetuning.model import load_model
from asterism.train import checkpoint, processes
from asterism.train.pretraining import Pretraining
from tests.campaigns.attacks import no_network
from tests.campaigns.campaign import Case
from tests.campaigns.disks import no_large_files, read_only, small_disk
from tests.campaigns.faults import CONTENTS, GONE, PLACES, WRONG, Change, both, flipped, in_json, in_yaml, put, remove
from tests.campaigns.materials import CAPTIONS, DINO, OF_A_STUDY, line, on, prepared
from tests.campaigns.processes import Ended, computed, execute

_EITHER = (0, 2)
_LAST, _BEFORE = "checkpoints/step-00000002", "checkpoints/step-00000001"
_USUAL = ("resume", "report", "evaluate")


@dataclass(frozen=True)
class Kind:
    """Runs of one command: what reads them, which files matter to what, and what an edited recipe may not change."""

    name: str  # of the folder
    lines: Mapping[str, str]
    files: Mapping[str, Sequence[str]]
    edits: Mapping[str, Any]
    leaves: str
    model: str  # the file of what was trained
    inside: Callable[[], None] | None = None
    checks: Mapping[str, Callable[[Path, Ended], str | None]] = field(default_factory=dict)

    def case(self, cause: str, name: str, change: Change, command: str, refused: bool = False, **more: Any) -> Case:
        """The change is of the run's own folder."""
        own, run = self.name, f"{self.name}/*"
        outputs = {"resume": (own, run), "overwrite": (own, run), "report": (f"{own}/report.html",)}
        outputs |= dict.fromkeys(("evaluate", "evaluate without data"), (f"{own}/eval", f"{own}/eval/*"))
        settings: dict[str, Any] = {
            "exits": (2,) if refused else _EITHER,
            "outputs": outputs.get(command, ("out*",)),
            "seconds": 300,
            "inside": self.inside,
            "check": self.checks.get(command),
        }
        words = prepared_with(own, self.lines[command])
        return on(f"{own}: {name}, {command}", cause, words, lambda here: change(here / own), **(settings | more))


def prepared_with(name: str, words: str) -> list[str]:
    """The words name the run, so that it exists; `compare` names it in its file."""
    assert name in words or "study" in words
    return words.split()


def _has_a_model(here: Path, ended: Ended) -> str | None:
    """A run that says it is finished has a model that can be used."""
    if ended.code == 0:
        load_model(here / "finetuned")
    return None


def _usual_lines(verb: str, name: str, data: str, overwrite: str) -> dict[str, str]:
    return {
        "resume": f"{verb} --resume {name}",
        "report": f"report {name}",
        "embed": f"embed {name} --data {data} --out out.npz",
        "export": f"export {name} --to safetensors --out out",
        "overwrite": " ".join([*line(overwrite, out=name), "--overwrite"]),
    }


_PRETRAINED = Kind(
    "pretrained",
    lines=_usual_lines("pretrain", "pretrained", "photos", "pretrain") | {
        "evaluate": "evaluate pretrained --data photos knn.k=2",
        "evaluate without data": "evaluate pretrained knn.k=2",
        "concepts": "concepts pretrained photos/red/000.png --out out",
        "init": f"pretrain {DINO} --data photos --init pretrained --out out",
    },
    files={
        "config.yaml": ("resume", "report", "evaluate without data", "export"),
        "environment.json": ("resume", "report"),
        "metrics.jsonl": ("resume", "report", "export"),
        "bad_images.jsonl": ("resume",),
        "eval/knn.json": ("report", "evaluate", "export"),
        "encoder.safetensors": ("resume", "embed", "init", "concepts", "export"),
        f"{_LAST}/state.json": ("resume", "report"),
        f"{_LAST}/method.safetensors": ("resume", "report"),
        f"{_LAST}/optimizer.safetensors": ("resume",),
        f"{_LAST}/checksums.txt": ("resume",),
    },
    edits={
        "trainer.seed": 1, "trainer.steps": 40, "trainer.batch_size": 2, "trainer.precision": "bf16", "optim.lr": 0.5,
        "optim.weight_decay": 0.3, "optim.betas": [0.5, 0.5], "method.out_dim": 16, "method.momentum": 0.5,
        "backbone.dim": 32, "data.mean": [0.1, 0.1, 0.1], "data.shuffle": False,
    },
    leaves="""method.name method.out_dim method.momentum backbone.name backbone.image_size backbone.patch_size
        backbone.depth backbone.heads data.path data.split data.workers data.prefetch data.std optim.lr optim.betas
        optim.clip optim.warmup_epochs trainer.epochs trainer.steps trainer.batch_size trainer.accumulate
        trainer.devices trainer.seed checkpoint.every_steps checkpoint.keep_last monitor.log_every monitor.knn""",
    model="encoder.safetensors",
)  # fmt: skip
_FINETUNED = Kind(
    "finetuned",
    lines=_usual_lines("finetune", "finetuned", "labelled", "finetune") | {
        "evaluate": "evaluate finetuned --data labelled",
        "evaluate without data": "evaluate finetuned",
        "predict": line("predict")[0] + " finetuned --images labelled --out out",
    },
    files={
        "config.yaml": ("resume", "report", "evaluate without data"),
        "metrics.jsonl": ("resume", "report"),
        "eval/classify.json": ("report", "evaluate"),
        "encoder.safetensors": ("resume", "embed", "predict"),
        "model.safetensors": ("resume", "predict", "evaluate", "report", "export"),
        f"{_LAST}/state.json": ("resume",),
        f"{_LAST}/method.safetensors": ("resume",),
    },
    edits={
        "trainer.seed": 1, "trainer.steps": 40, "trainer.batch_size": 2, "optim.lr": 0.1, "optim.layer_decay": 0.5,
        "task.label_smoothing": 0.5, "task.name": "probe", "task.head.pooling": "mean",
        "task.head.name": "first-layer", "validation.share": 0.5, "validation": None, "average": None,
        "source.network.image_size": 32, "source.network.mean": [0.1, 0.1, 0.1],
        "source.network.architecture.arguments.depth": 2, "source.weights": "fresh", "data.label_share": 0.5,
    },
    leaves="""task task.name task.head task.head.name source source.network source.network.architecture
        source.network.architecture.name source.network.std source.options source.path data.path data.split optim.betas
        optim.layer_decay trainer.steps trainer.devices validation average checkpoint monitor.log_every""",
    model="model.safetensors",
    checks={"resume": _has_a_model},
)  # fmt: skip
_ALIGNED = Kind(
    "aligned",
    lines=_usual_lines("align", "aligned", "captions", "align") | {
        "evaluate": f"evaluate aligned --data {CAPTIONS} --protocols text-retrieval",
        "evaluate without data": "evaluate aligned --protocols text-retrieval",
    },
    files={
        "config.yaml": ("resume", "report"),
        "metrics.jsonl": ("resume", "report"),
        "eval/text-retrieval.json": ("report", "evaluate"),
        "encoder.safetensors": ("resume", "embed", "evaluate"),
        "alignment.safetensors": ("resume", "embed", "evaluate", "report", "export"),
        f"{_LAST}/state.json": ("resume",),
        f"{_LAST}/log.safetensors": ("resume",),
        f"{_LAST}/method.safetensors": ("resume",),
    },
    edits={
        "trainer.seed": 1, "trainer.steps": 40, "optim.lr": 0.1, "loss.name": "softmax", "probe.tokens": "class",
        "text.dim": 32, "text.vocabulary": 3, "text.name": "hf:nobody/nothing", "data.held_out": 0.5,
    },
    leaves="""source source.path data.path data.split text text.name probe probe.heads loss loss.scale optim.betas
        trainer.steps trainer.devices checkpoint monitor.log_every""",
    model="alignment.safetensors",
    inside=no_network,
)  # fmt: skip


def cases(seed: int) -> Iterator[Case]:
    for kind in (_PRETRAINED, _FINETUNED, _ALIGNED):
        choice = random.Random(f"{seed} {kind.name}")
        yield from _contents(kind)
        yield from _flips(kind, choice)
        yield from _recipes(kind, choice)
        yield from _parts(kind)
    yield from _values(random.Random(seed))
    yield from _disturbed()
    yield from _writers()
    yield from _kills(seed)


# -- files with other content, or something else in their place


def _contents(kind: Kind) -> Iterator[Case]:
    for file, commands in kind.files.items():
        for command in commands:
            for name, content in CONTENTS.items():
                yield kind.case("wrong content", f"{file} {name}", put(file, content), command)
            for name, make in PLACES.items():
                yield kind.case("something else in place of a file", f"{file} {name}", put(file, make), command)
    if kind is _PRETRAINED:
        for file, make in (
            *((folder, make) for folder in ("checkpoints", "eval", _LAST) for make in PLACES.items()),
            *((folder, ("a file", lambda path: path.write_text("x"))) for folder in ("checkpoints", "eval", _LAST)),
            *((file, ("a folder", PLACES["a folder"])) for file in ("checkpoints/last", "report.html")),
        ):
            for command in _USUAL:
                cause = "something else in place of a folder"
                yield kind.case(cause, f"{file} {make[0]}", put(file, make[1]), command)  # type: ignore[arg-type]


def _flips(kind: Kind, choice: random.Random) -> Iterator[Case]:
    for file in ("method.safetensors", "optimizer.safetensors", "state.json", "checksums.txt"):
        for number in range(4):
            change = flipped(f"{_LAST}/{file}", choice.random())
            yield kind.case("flipped bits", f"{file}, bit {number}", change, "resume")
    for number in range(6):
        change = flipped(kind.model, choice.random() ** 3)  # more often in the header
        yield kind.case("flipped bits", f"{kind.model}, bit {number}", change, "embed", refused=kind is _ALIGNED)
        if kind is _FINETUNED:
            yield kind.case("flipped bits", f"{kind.model}, bit {number}", change, "predict", refused=True)
    both_damaged = both(*(flipped(f"{step}/method.safetensors", 0.9) for step in (_LAST, _BEFORE)))
    yield kind.case("flipped bits", "both checkpoints", both_damaged, "resume", refused=True)


# -- recipes that were edited


def _recipes(kind: Kind, choice: random.Random) -> Iterator[Case]:
    for key, value in kind.edits.items():
        change = in_yaml("config.yaml", key, value)
        for name, more in (("finished", change), ("unfinished", both(change, remove(_LAST)))):
            yield kind.case("another recipe", f"{key} = {value}, {name}", more, "resume", refused=True)
    for section in sorted({key.partition(".")[0] for key in kind.leaves.split()}):
        for command in ("resume", "report"):
            change = in_yaml("config.yaml", section, GONE)
            yield kind.case("wrong values in a recipe", f"section {section} gone", change, command)
    for key in kind.leaves.split():
        for wrong in choice.sample(WRONG, 3):
            command = choice.choice(("resume", "report", "evaluate without data", "evaluate"))
            change = in_yaml("config.yaml", key, wrong)
            yield kind.case("wrong values in a recipe", f"{key} = {wrong!r}"[:60], change, command)


# -- parts of runs


def _only(*names: str) -> Change:
    return lambda run: [remove(path.name)(run) for path in run.iterdir() if path.name not in names]


def _half_written(run: Path) -> None:
    shutil.copytree(run / _LAST, run / "checkpoints/.step-00000003.tmp")
    (run / "checkpoints/.step-00000003.tmp/state.json").unlink()


def _parts(kind: Kind) -> Iterator[Case]:
    everything = tuple(kind.lines)
    model = (kind.model,) if kind is _PRETRAINED else ("encoder.safetensors", kind.model)
    for name, change, commands, refused in (
        ("undamaged", lambda run: None, everything, ()),
        ("without checkpoints", remove("checkpoints"), everything, () if kind is _PRETRAINED else ("resume",)),
        ("only a recipe", _only("config.yaml"), everything, ("resume", "evaluate", "embed")),
        ("only weights", _only(*model), everything, ("resume",)),
        ("nothing", _only(), everything, ("resume", "report", "embed")),
        ("killed before the export", remove(*model), ("resume",), ()),
        ("killed in a checkpoint", _half_written, ("resume", "report"), ()),
        ("without the link", remove("checkpoints/last"), ("resume",), ()),
        ("a leftover lock", put(".lock", "{}"), ("resume", "overwrite"), ()),
        ("a lock that is a folder", put(".lock", Path.mkdir), ("resume", "overwrite"), ()),
        ("a lock that is a link", put(".lock", lambda path: path.symlink_to("x")), ("resume",), ()),
        ("data gone", in_yaml("config.yaml", "data.path", "nowhere"), everything, ("resume",)),
    ):
        for command in commands:
            yield kind.case("parts of runs", name, change, command, refused=command in refused)


# -- values in a checkpoint, in metrics and in results


def _state(key: str, value: Any) -> Change:
    """A changed state whose checksum is right, so that only the value is wrong."""

    def change(run: Path) -> None:
        in_json(f"{_LAST}/state.json", key, value)(run)
        sums = run / _LAST / "checksums.txt"
        lines = [text for text in sums.read_text().splitlines() if not text.endswith("state.json")]
        digest = hashlib.sha256((run / _LAST / "state.json").read_bytes()).hexdigest()
        sums.write_text("\n".join([*lines, f"{digest}  state.json"]) + "\n")

    return change


def _logged(key: str, value: Any) -> Change:
    def change(run: Path) -> None:
        path = run / "metrics.jsonl"
        lines = [json.dumps(json.loads(text) | {key: value}) for text in path.read_text().splitlines()]
        path.write_text("\n".join(lines) + "\n")

    return change


_RESULT = """protocol values values.top1_k2 constants model model.name model.step test test.images baselines notes
    seconds versions"""


def _values(choice: random.Random) -> Iterator[Case]:
    case = _PRETRAINED.case
    cause = "wrong values in a checkpoint"
    for key in ("step", "steps", "images", "batch_size", "data", "recipe", "format", "version"):
        for wrong in choice.sample(WRONG, 4):
            yield case(cause, f"state.json {key} = {wrong!r}"[:60], _state(key, wrong), "resume")
    yield case(cause, "of a newer version", _state("format", 99), "resume", refused=True)
    yield case(cause, "another number of images", _state("images", 9), "resume", refused=True)
    for name in ("step-00000009", "step-99999999999999999999", "step-x", "damaged-step-00000002"):
        for command in ("resume", "report"):
            yield case(cause, f"an empty {name}", put(f"checkpoints/{name}", Path.mkdir), command)
    for key in ("step", "loss", "lr", "images_per_second", "knn", "warning", "view_retrieval"):
        for wrong in choice.sample(WRONG, 4):
            for command in ("report", "resume"):
                yield case("wrong values in metrics", f"{key} = {wrong!r}"[:60], _logged(key, wrong), command)
    for key in _RESULT.split():
        for wrong in choice.sample(WRONG, 3):
            change = in_json("eval/knn.json", key, wrong)
            yield case("wrong values in results", f"{key} = {wrong!r}"[:60], change, "report")
    for kind in (_PRETRAINED, _FINETUNED):  # a study that reads a run
        for name, change in {"undamaged": lambda run: None, "nothing": _only()}.items():
            study = put("study.yaml", f"steps: 2\nruns:\n  mine: {{model: {kind.name}}}\n{OF_A_STUDY}")
            damaged = both(lambda here, name=kind.name: prepared(here, name), study, _below(kind.name, change))
            name = f"compare {kind.name}: {name}"
            yield on(name, "parts of runs", line("compare"), damaged, exits=_EITHER, seconds=300, slow=True)


def _below(folder: str, change: Change) -> Change:
    return lambda here: change(here / folder)


# -- training that is disturbed


def _disturbed() -> Iterator[Case]:
    """While the second step is trained; then the first checkpoint must be good."""
    for kind, data, devices in ((_PRETRAINED, "photos", 1), (_PRETRAINED, "photos", 2), (_FINETUNED, "labelled", 1)):
        run = kind.name
        words = f"{kind.lines['resume']} data.path={data} trainer.devices={devices} data.workers=1"
        case = partial(
            on, words=words, change=_below(run, remove(_LAST)), check=partial(_first_is_good, run), seconds=300,
            outputs=(run, f"{run}/*"), slow=devices == 2,
            kept=tuple(f"{run}/{name}" for name in ("metrics.jsonl", "encoder.safetensors", kind.model)),
        )  # fmt: skip
        where, cause = f"{run}, {devices} processes", "full and failing disks"
        for kilobytes in (0, 8, 40, 80, 160):
            around = lambda here, run=run, size=kilobytes: small_disk(here / run, size)  # noqa: E731
            yield case(f"{kilobytes} kB left, {where}", cause, exits=_EITHER, around=around)
        yield case(f"read-only, {where}", cause, around=lambda here, run=run: read_only(here / run))
        yield case(f"files cannot grow, {where}", cause, inside=no_large_files)
        if kind is _PRETRAINED:
            cause = "disturbed processes"
            vanished = (f"{run}/*", f"{data}*")
            yield case(f"the data vanishes, {where}", cause, inside=_remove_the_data, kept=vanished)
            yield case(f"a data worker is killed, {where}", cause, inside=_kill_a_worker)
        if devices == 2:
            for name, number in (("killed", signal.SIGKILL), ("stopped", signal.SIGSTOP)):
                yield case(f"a process is {name}", cause, inside=partial(_signal_the_other, number))


def _first_is_good(run: str, here: Path, ended: Ended) -> str | None:
    checkpoint.verify(here / run / _BEFORE)
    left = [path.name for path in (here / run).rglob(".*")]
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


# -- two writers

_HOLD = """
import sys
from pathlib import Path
from asterism.lock import folder_lock, owned
folder = Path(sys.argv[1])
folder.mkdir(exist_ok=True)
with owned(folder_lock(folder), folder):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def _held(name: str, here: Path) -> Iterator[None]:
    """Another process owns the folder."""
    words = [sys.executable, "-c", _HOLD, str(here / name)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        try:
            yield
        finally:
            other.communicate()


def _writers() -> Iterator[Case]:
    def names_the_owner(here: Path, ended: Ended) -> str | None:
        return None if "is being written by process" in ended.errors else f"the owner is not named: {ended.errors}"

    for name, folder, words in (
        ("resume", "finetuned", _FINETUNED.lines["resume"]),
        ("overwrite", "finetuned", _FINETUNED.lines["overwrite"]),
        ("new", "out", line("finetune")),
    ):
        yield on(name, "two writers", words, around=partial(_held, folder), check=names_the_owner)


# -- kills

# Measured at every second step; records of four steps, which a kill divides.
_LONG = ("trainer.steps=10", "monitor.log_every=4")


def _kills(seed: int) -> Iterator[Case]:
    """SIGKILL at random instants of training, measuring and saving, again and again; then resumed to the end."""
    choice = random.Random(f"{seed} kills")
    for number in range(24):
        held_out = number % 2 == 0
        instants = [round(choice.uniform(0.0, 1.2), 3) for _ in range(2)]
        name = f"{number}, {'best' if held_out else 'last'} weights, after {instants} s of computing"
        prepare = partial(_killed, instants=instants, held_out=held_out)
        check = partial(_equals_undisturbed, held_out=held_out)
        outputs = ("run", "run/*")
        yield Case(name, "resumed after kills", prepare, (0,), outputs, check=check, seconds=300, slow=number > 1)


def _long(here: Path, held_out: bool) -> list[str]:
    words = line("finetune", *_LONG, out="run")
    if held_out:
        return prepared(here, [*words, "validation.every_epochs=0.6"])
    return prepared(here, [*(word for word in words if not word.startswith("validation.")), "validation=null"])


def _killed(here: Path, instants: Sequence[float], held_out: bool) -> list[str]:
    words = start = _long(here, held_out)
    run = here / "run"
    for instant in instants:
        ended = execute(words, here, seconds=300, kill_when=_after(run, instant))
        assert ended.code in (0, -9), ended.errors
        words = ["finetune", "--resume", "run"] if checkpoint.steps(run / "checkpoints") else [*start, "--overwrite"]
    return words


def _after(run: Path, seconds: float) -> Callable[[int], bool]:
    """When the process has computed for so long since it owns the run."""
    began: list[float] = []

    def due(pid: int) -> bool:
        if not (run / ".lock").exists():
            return False
        began.append(computed(pid))
        return began[-1] - began[0] >= seconds

    return due


@functools.cache
def _undisturbed(held_out: bool) -> Mapping[str, bytes]:
    with tempfile.TemporaryDirectory(prefix="asterism-undisturbed-") as name:
        here = Path(name) / "here"
        here.mkdir()
        ended = execute(_long(here, held_out), here, seconds=300)
        assert ended.code == 0, ended.errors
        return _results(here / "run")


def _results(run: Path) -> Mapping[str, bytes]:
    files = [run / "model.safetensors", run / "encoder.safetensors", *sorted((run / "checkpoints/last").iterdir())]
    losses = [json.loads(text).get("loss") for text in (run / "metrics.jsonl").read_text().splitlines()]
    return {path.name: path.read_bytes() for path in files} | {"losses": json.dumps(losses).encode()}


def _equals_undisturbed(here: Path, ended: Ended, held_out: bool) -> str | None:
    whole, parts = _undisturbed(held_out), _results(here / "run")
    differ = sorted(name for name in {*whole, *parts} if whole.get(name) != parts.get(name))
    return f"differs from the undisturbed run: {', '.join(differ)}" if differ else None
