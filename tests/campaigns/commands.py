"""`explore`, `profile`, `export`, `pretrain distill` and `compare`: bad words, missing and damaged files, attacks.

A server that starts would never end, so every case of `explore` has something that must stop it before.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import torch

from tests.campaigns import materials
from tests.campaigns.campaign import Case
from tests.campaigns.disks import read_only
from tests.campaigns.finetuning import MARKUP, nothing_hostile
from tests.campaigns.inputs import KINDS, YAMLS
from tests.campaigns.processes import Ended
from tests.campaigns.run_folders import CONTENTS, PLACES, replaced, written
from tests.campaigns.security import no_network

Words = list[str]
_EITHER = (0, 2)
_ESCAPE = "\x1b]0;owned\x07\x1b[2J"


def cases(seed: int) -> Iterator[Case]:
    yield from _explore()
    yield from _profile()
    yield from _export()
    yield from _distill()
    yield from _compare()


def _prepared(
    here: Path, command: Callable[..., Words], words: Sequence[str], change: Callable[[Path], object]
) -> Words:
    found = command(here, *words)
    change(here)
    return found


def _made(make: Callable[[Path], object], file: str, here: Path) -> None:
    make(here / file)


def _unchanged(here: Path) -> None:
    pass


def _pickled(file: str, here: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
            import os

            return os.system, ("touch owned",)

    torch.save({"state_dict": {"a": Evil()}}, here / file)


# -- explore


def _explored(here: Path, *words: str) -> Words:
    model, data = materials.weights(here / "w.safetensors"), materials.photos(here / "photos")
    materials.index(here / "index.npz", model, data)
    materials.run(here / "run")
    return ["explore", *(words or ("w.safetensors", "--data", "photos")), "--no-browser"]


def _explore() -> Iterator[Case]:
    cause = "explore: words"
    model = "w.safetensors"
    for name, words in {
        "unknown model": ["nowhere", "--data", "photos"],
        "model with escapes": [_ESCAPE, "--data", "photos"],
        "no images": [model],
        "missing images": [model, "--data", "nowhere"],
        "images in a file": [model, "--data", "w.safetensors"],
        "images of an unknown user": [model, "--data", "~nosuchuser"],
        "missing index": [model, "--index", "nowhere.npz"],
        "index is a folder": [model, "--index", "photos"],
        "index is an image": [model, "--index", "photos/red/000.png"],
        "unknown split": [model, "--data", "photos", "--split", "nothing"],
        "unknown second model": [model, "--data", "photos", "--with", "nowhere"],
        "damaged second model": [model, "--data", "photos", "--with", "photos/red/000.png"],
        "writes to a file": [model, "--data", "photos", "--allow-writes", "w.safetensors"],
        "writes below a file": [model, "--data", "photos", "--allow-writes", "w.safetensors/x"],
        "writes to a name too long": [model, "--data", "photos", "--allow-writes", "n" * 300],
        "port -1": [model, "--data", "photos", "--port", "-1"],
        "port 65536": [model, "--data", "photos", "--port", "65536"],
        "port x": [model, "--data", "photos", "--port", "x"],
        "unknown device": [model, "--data", "photos", "--device", "x"],
        "unknown option of weights": [model, "--data", "photos", "-w", "nothing=1"],
    }.items():
        prepare = partial(_prepared, command=_explored, words=words, change=_unchanged)
        yield Case(name, cause, prepare, seconds=60, check=_no_escapes)
    occupied = ("w.safetensors", "--data", "photos", "--port", "48231")
    prepare = partial(_prepared, command=_explored, words=occupied, change=_unchanged)
    yield Case("port in use", cause, prepare, seconds=60, around=_listening)
    unwritable = ("w.safetensors", "--data", "photos", "--allow-writes", "out/new")

    def with_out(here: Path) -> Words:
        (here / "out").mkdir()
        return _explored(here, *unwritable)

    yield Case("writes to a read-only disk", cause, with_out, seconds=60, around=lambda here: read_only(here / "out"))
    cause = "explore: files"
    with_index, of_run = ("w.safetensors", "--index", "index.npz"), ("run", "--data", "photos")
    for name, content in CONTENTS.items():
        for file, words in (("index.npz", with_index), ("run/encoder.safetensors", of_run)):
            prepare = partial(_prepared, command=_explored, words=words, change=written(file, content))
            yield Case(f"{file} {name}", cause, prepare, seconds=60)
    for kind, make in KINDS.items():
        for file, words in (("index.npz", with_index), ("w.safetensors", ()), ("run/encoder.safetensors", of_run)):
            prepare = partial(_prepared, command=_explored, words=words, change=partial(_made, make, file))
            yield Case(f"{file}: {kind}", cause, prepare, seconds=60)
    gone: dict[str, Callable[[Path], object]] = {
        "images gone": lambda here: shutil.rmtree(here / "photos"),
        "an image gone": lambda here: (here / "photos/red/000.png").unlink(),
    }
    prepare = partial(_prepared, command=_explored, words=with_index, change=gone["images gone"])
    yield Case("images of the index gone", cause, prepare, seconds=60)
    evil = ("evil.pth", "--data", "photos")
    prepare = partial(_prepared, command=_explored, words=evil, change=partial(_pickled, "evil.pth"))
    yield Case("weights that run code", cause, prepare, seconds=60)


@contextlib.contextmanager
def _listening(here: Path) -> Iterator[None]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 48231))
        taken.listen()
        yield


def _no_escapes(here: Path, ended: Ended) -> str | None:
    return "control characters reach the terminal" if "\x1b" in ended.output + ended.errors else None


# -- profile


def _profiled(here: Path, *words: str) -> Words:
    materials.photos(here / "photos")
    return ["profile", *materials.DINO, "--data", "photos", "--steps", "1", *words]


def _profile() -> Iterator[Case]:
    cause = "profile"
    for name, words in {
        "steps 0": ["--steps", "0"],
        "steps -1": ["--steps", "-1"],
        "steps x": ["--steps", "x"],
        "missing data": ["--data", "nowhere"],
        "data with escapes": ["--data", _ESCAPE],
        "batch 0": ["trainer.batch_size=0"],
        "batch larger than the data": ["trainer.batch_size=4000"],
        "lr nan": ["optim.lr=.nan"],
        "depth huge": ["backbone.depth=999999999"],
        "unknown setting": ["nothing=1"],
        "unknown device": ["trainer.accelerator=tpu"],
    }.items():
        prepare = partial(_prepared, command=_profiled, words=words, change=_unchanged)
        yield Case(name, cause, prepare, check=_no_escapes)
    yield Case("nothing is written", cause, _profiled, (0,))
    for kind, make in KINDS.items():
        place = partial(_made, make, "photos/red/x.png")
        prepare = partial(_prepared, command=_profiled, words=["data.max_bad_share=0.5"], change=place)
        yield Case(f"{kind} among images", cause, prepare, _EITHER)
        prepare = partial(_prepared, command=_profile_file, words=(), change=partial(_made, make, "recipe.yaml"))
        yield Case(f"recipe: {kind}", cause, prepare)
    for name in ("duplicate key", "python tag", "deep flow", "aliases", "not UTF-8"):
        content = YAMLS[name]
        write = partial(_write, "recipe.yaml", content if isinstance(content, bytes) else content.encode())
        yield Case(f"recipe {name}", cause, partial(_prepared, command=_profile_file, words=(), change=write))


def _profile_file(here: Path) -> Words:
    materials.photos(here / "photos")
    return ["profile", "recipe.yaml", "--data", "photos"]


def _write(file: str, content: bytes, here: Path) -> None:
    (here / file).write_bytes(content)


# -- export


def _exported(here: Path, *words: str) -> Words:
    materials.weights(here / "w.safetensors"), materials.run(here / "run")
    return ["export", *(words or ("run", "--to", "safetensors")), "--out", "out"]


def _export() -> Iterator[Case]:
    cause = "export"
    for name, words in {
        "unknown format": ["run", "--to", "coreml"],
        "unknown precision": ["run", "--to", "timm", "--dtype", "int4"],
        "missing model": ["nowhere", "--to", "timm"],
        "a folder without a model": ["run/checkpoints", "--to", "timm"],
        "model with escapes": [_ESCAPE, "--to", "timm"],
        "unknown option of weights": ["w.safetensors", "--to", "timm", "-w", "nothing=1"],
    }.items():
        prepare = partial(_prepared, command=_exported, words=words, change=_unchanged)
        yield Case(name, cause, prepare, check=_no_escapes)
    for target in ("safetensors", "timm", "torchscript"):
        for kind, text in (("markup", MARKUP), ("escapes", _ESCAPE), ("lines", "a\n---\nb: c"), ("long", "x" * 9999)):
            words = ["run", "--to", target, "--license", text]
            prepare = partial(_prepared, command=_exported, words=words, change=_unchanged)
            yield Case(f"{target}, licence with {kind}", cause, prepare, _EITHER, check=nothing_hostile)
    for file in ("encoder.safetensors", "config.yaml", "eval/knn.json", "metrics.jsonl"):
        for name, content in CONTENTS.items():
            prepare = partial(_prepared, command=_exported, words=(), change=_in_run(written(file, content)))
            yield Case(f"run/{file} {name}", cause, prepare, _EITHER)
        for name, make in PLACES.items():
            prepare = partial(_prepared, command=_exported, words=(), change=_in_run(replaced(file, make)))
            yield Case(f"run/{file} {name}", cause, prepare, _EITHER)
    for kind, make in KINDS.items():
        words = ["w.safetensors", "--to", "timm"]
        prepare = partial(_prepared, command=_exported, words=words, change=partial(_made, make, "w.safetensors"))
        yield Case(f"weights: {kind}", cause, prepare)
    evil = ["evil.pth", "--to", "timm"]
    yield Case(
        "weights that run code",
        cause,
        partial(_prepared, command=_exported, words=evil, change=partial(_pickled, "evil.pth")),
    )


def _in_run(change: Callable[[Path], object]) -> Callable[[Path], object]:
    return lambda here: change(here / "run")


# -- distillation


def _distilled(here: Path, *words: str) -> Words:
    materials.photos(here / "photos"), materials.weights(here / "w.safetensors")
    given = ["--data", "photos", "--out", "out", "method.teacher=w.safetensors", *words]
    return ["pretrain", "distill", *materials.SMALL, *given]


def _distill() -> Iterator[Case]:
    cause = "distillation"
    yield Case("undisturbed", cause, _distilled, (0,), inside=no_network)
    for text in _words(
        """
        method.teacher=nowhere method.teacher=photos method.teacher=5 method.teacher=null method.teacher=[]
        method.teacher=~nosuchuser method.teacher=photos/red/000.png method.teacher_options=5
        method.teacher_options={nothing:1} method.teacher_options={heads:0} method.teacher_size=0
        method.teacher_size=x method.teacher_size=17 method.teacher_size=99999999 method.cls=5 method.cls={distance:x}
        method.cls={weight:.nan} method.patches={weight:-1} method.queue=5 method.queue={size:0}
        method.queue={teacher_temp:0} method.head_layers=-1 method.hidden_dim=0 method.scale=[0,1] method.scale=[1,0.5]
        method.blur=2 method.image_size=17
        """
    ):
        prepare = partial(_prepared, command=_distilled, words=[text], change=_unchanged)
        yield Case(text, cause, prepare, inside=no_network)
    words = ["method.cls=null", "method.patches=null"]
    yield Case("nothing to learn", cause, partial(_prepared, command=_distilled, words=words, change=_unchanged))
    for kind, make in KINDS.items():
        prepare = partial(_prepared, command=_distilled, words=(), change=partial(_made, make, "w.safetensors"))
        yield Case(f"teacher: {kind}", cause, prepare)
    for name, content in CONTENTS.items():
        prepare = partial(_prepared, command=_distilled, words=(), change=written("w.safetensors", content))
        yield Case(f"teacher {name}", cause, prepare)
    evil = partial(_pickled, "evil.pth")
    words = ["method.teacher=evil.pth"]
    yield Case("a teacher that runs code", cause, partial(_prepared, command=_distilled, words=words, change=evil))


def _words(text: str) -> Words:
    return text.split()


# -- comparisons

_STUDY = "steps: 2\nruns: {%s}\nevaluations: [{data: photos, protocols: [knn], settings: [knn.k=2]}]\n"


def _compared(here: Path, *words: str) -> Words:
    materials.photos(here / "photos"), materials.weights(here / "w.safetensors")
    (here / "study.yaml").write_text(_STUDY % "a: {model: pixels}")
    return ["compare", *(words or ("study.yaml",)), "--jobs", "1", "--out", "out"]


def _compare() -> Iterator[Case]:
    cause = "comparisons"
    for name, words in {
        "unknown study": ["nothing"],
        "study with escapes": [_ESCAPE],
        "unknown run": ["study.yaml", "--only", "b"],
        "jobs 0": ["study.yaml", "--jobs", "0"],
        "missing data": ["study.yaml", "--data", "nowhere"],
        "unknown launcher": ["study.yaml", "--launch", "cron"],
        "devices 0": ["study.yaml", "--launch", "slurm", "--devices", "0"],
        "nodes -1": ["study.yaml", "--launch", "slurm", "--nodes", "-1"],
    }.items():
        prepare = partial(_prepared, command=_compared, words=words, change=_unchanged)
        exits = _EITHER if name == "missing data" else (2,)  # pixels are not trained
        yield Case(name, cause, prepare, exits, check=_no_escapes)
    for name, run in {
        "a missing model": "a: {model: nowhere}",
        "a model that is an image": "a: {model: photos/red/000.png}",
        "model and recipe": "a: {model: pixels, recipe: dino}",
        "neither": "a: {}",
        "a run that is a list": "a: [1]",
        "a name that is a path": "../a: {model: pixels}",
        "a name with NUL": '"a\\0": {model: pixels}',
        "a name too long": f"{'n' * 300}: {{model: pixels}}",
        "two names that differ in case": "A: {model: pixels}, a: {model: pixels}",
        "unknown protocol": "a: {model: pixels}}\nevaluations: [{data: photos, protocols: [x]}]\nz: {b: 1",
    }.items():
        write = partial(_write, "study.yaml", (_STUDY % run).encode())
        exits = _EITHER if name in ("two names that differ in case", "a missing model") else (2,)
        kept = ("out", "out/*")
        yield Case(name, cause, partial(_prepared, command=_compared, words=(), change=write), exits, kept=kept)
    for kind, make in KINDS.items():
        prepare = partial(_prepared, command=_compared, words=(), change=partial(_made, make, "study.yaml"))
        yield Case(f"study: {kind}", cause, prepare)
    named = partial(_write, "study.yaml", (_STUDY % f'"{MARKUP}": {{model: pixels}}').encode())
    prepare = partial(_prepared, command=_compared, words=(), change=named)
    yield Case("a name with markup", cause, prepare, _EITHER, check=nothing_hostile)
