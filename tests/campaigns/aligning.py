"""Alignment with text: bad settings and captions, special files, damaged runs, and files that describe an attack."""

from __future__ import annotations

import io
import json
import random
import shutil
import tarfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tests.campaigns import materials
from tests.campaigns.campaign import Case
from tests.campaigns.finetuning import MARKUP, nothing_hostile, redescribed, set_to
from tests.campaigns.inputs import KINDS
from tests.campaigns.processes import execute
from tests.campaigns.run_folders import CONTENTS, PLACES, WRONG, Change, edited, flipped, replaced, written
from tests.campaigns.security import no_network

Words = list[str]
_EITHER = (0, 2)
_LAST = "checkpoints/step-00000002"
_LIST = "captions/captions.jsonl"
_ESCAPE = "\x1b]0;owned\x07\x1b[2J"


def cases(seed: int) -> Iterator[Case]:
    yield from _settings()
    yield from _captions(random.Random(seed))
    yield from _special_files()
    yield from _damaged_runs(random.Random(seed + 1))
    yield from _descriptions()
    yield from _hostile()


def _align(here: Path, *words: str) -> Words:
    materials.captions(here / "captions"), materials.weights(here / "w.safetensors")
    return ["align", "w.safetensors", "--data", _LIST, "--out", "out", *materials.ALIGNING, *words]


# -- settings


def _words(text: str) -> Words:
    return text.split()


BAD_SETTINGS = _words(
    """
    text.dim=0 text.dim=-1 text.dim=17 text.dim=99999999999 text.depth=0 text.depth=.nan text.heads=0 text.heads=3
    text.context=0 text.context=-1 text.vocabulary=0 text.vocabulary=x text.name=nowhere text.name=5 text.name=[a]
    text.name=hf:a text.name=hf:../../x text.name=open_clip:nothing text.name=open_clip:ViT-B-32:nothing
    text.name=open_clip:ViT-B-32:/etc/passwd text=5 text.nothing=1 probe.tokens=x probe.tokens=sparse probe.heads=0
    probe.heads=3 probe.heads=-1 probe.mlp_ratio=-1 probe.mlp_ratio=.nan probe.mlp_ratio=.inf probe=5 probe.nothing=1
    loss.name=x loss.scale=0 loss.scale=-1 loss.scale=.nan loss.scale=1e999 loss.bias=.nan loss.bias=.inf loss.chunk=0
    loss=5 data.held_out=1 data.held_out=-0.1 data.held_out=.nan data.precision=int8 data.encode_batch=0
    data.workers=-1 data.max_bad_share=2 data.split=nothing data.path=5 data.path=[] data=5 source.path=elsewhere
    source=5 optim.lr=-1 optim.lr=.nan optim.clip=-1 optim.warmup_share=2 trainer.steps=0 trainer.batch_size=0
    trainer.batch_size=9999 trainer.accumulate=2 trainer.strategy=fsdp trainer.devices=0 trainer.seed=-1
    checkpoint.every_steps=0 monitor.log_every=0 nothing.nothing=1 =1 trainer..steps=3
    """
)


def _settings() -> Iterator[Case]:
    cause = "alignment: settings"
    for text in BAD_SETTINGS:
        offline = None if "open_clip" in text else no_network  # the names of its models may be asked for
        yield Case(text, cause, lambda here, text=text: _align(here, text), inside=offline)  # type: ignore[misc]
    for name, words in {
        "no source": ["align", "--data", _LIST],
        "no data": ["align", "w.safetensors"],
        "images without captions": ["align", "w.safetensors", "--data", "captions/red0.png"],
        "resume and source": ["align", "w.safetensors", "--resume", "captions"],
        "resume a folder of images": ["align", "--resume", "captions"],
        "resume nothing": ["align", "--resume", "nowhere"],
        "resume a file": ["align", "--resume", "w.safetensors"],
        "search by a sentence without words": ["search", "w.safetensors", "--text", "a dog", "--data", "captions"],
        "concepts by words without words": ["concepts", "w.safetensors", "captions/red0.png", "--text", "a dog"],
        "zero-shot without words": ["evaluate", "w.safetensors", "--data", "captions", "--protocols", "zero-shot"],
    }.items():
        yield Case(name, cause, partial(_with_inputs, words))


def _with_inputs(words: Words, here: Path) -> Words:
    _align(here)
    return words


# -- captions


def _line(**changes: Any) -> str:
    return json.dumps({"image": "red0.png", "captions": ["a red picture"]} | changes)


LINES: dict[str, str | bytes] = {
    "empty": "",
    "no JSON": "x",
    "a number": "5",
    "deep": "[" * 50_000,
    "cut off": _line()[:-9],
    "not UTF-8": b'{"image": "\xff\xfe"}',
    "NUL": "\0" * 99,
    "no image": json.dumps({"captions": ["x"]}),
    "no caption": json.dumps({"image": "red0.png"}),
    "caption number": _line(captions=[5]),
    "caption empty": _line(captions=[" "]),
    "caption list empty": _line(captions=[]),
    "caption half a character": _line(captions=["\ud800"]),
    "image gone": _line(image="gone.png"),
    "image a folder": _line(image="."),
    "image a name too long": _line(image="n" * 5000),
    "image with NUL": _line(image="a\0.png"),
    "image half a character": _line(image="\ud800.png"),
    "image no image": _line(image="captions.jsonl"),
    "image outside": _line(image="../../../../etc/passwd"),
    "image absolute": _line(image="/etc/passwd"),
    "image a device": _line(image="/dev/zero"),
    "negatives number": _line(negatives=5),
    "negatives wrong": _line(negatives=[{"text": 5}]),
    "one image": _line(),
}
TABLES: dict[str, str | bytes] = {
    "empty": "",
    "no header": "red0.png,a red picture\n",
    "other columns": "a,b\n1,2\n",
    "too many cells": "image,caption\nred0.png,a,b\n",
    "unclosed quote": 'image,caption\nred0.png,"a\n',
    "NUL": "image,caption\nred0.png,\0\n",
    "a field of 200 kB": f"image,caption\nred0.png,{'x' * 200_000}\n",
    "not UTF-8": b"image,caption\n\xff,x\n",
}
COCOS: dict[str, Any] = {
    "list": [],
    "no annotations": {"images": []},
    "images number": {"images": 5, "annotations": []},
    "unknown image": {"images": [], "annotations": [{"image_id": 1, "caption": "x"}]},
    "image list": {
        "images": [{"id": [1], "file_name": "red0.png"}],
        "annotations": [{"image_id": [1], "caption": "x"}],
    },
    "caption number": {"images": [{"id": 1, "file_name": "red0.png"}], "annotations": [{"image_id": 1, "caption": 5}]},
}
_TAR_TEXTS: dict[str, tuple[str, bytes]] = {
    "no caption": ("red0.cls", b"1"),
    "empty": ("red0.txt", b""),
    "2 MB": ("red0.txt", b"x" * (2 << 20)),
    "no JSON": ("red0.json", b"{"),
    "deep": ("red0.json", b"[" * 50_000),
    "half a character": ("red0.json", b'{"caption": "\\ud800"}'),
}


def _captions(choice: random.Random) -> Iterator[Case]:
    cause = "alignment: captions"
    single = {"one image"}  # too few to train on or to hold out
    for name, content in LINES.items():
        yield Case(
            f"JSONL {name}", cause, partial(_listed, "captions.jsonl", content), _EITHER if name in single else (2,)
        )
    for name, content in TABLES.items():
        yield Case(f"CSV {name}", cause, partial(_listed, "list.csv", content))
    for name, values in COCOS.items():
        yield Case(f"COCO {name}", cause, partial(_listed, "list.json", json.dumps(values)))
    for name, (member, content) in _TAR_TEXTS.items():
        yield Case(f"tar {name}", cause, partial(_tar, member, content))
    for number in range(12):
        damage = partial(_damaged_list, choice.randrange(2**32))
        yield Case(f"JSONL damage {number}", cause, damage, _EITHER, slow=number > 2)


def _listed(name: str, content: str | bytes, here: Path) -> Words:
    words = _align(here)
    (here / "captions" / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return [f"captions/{name}" if word == _LIST else word for word in words]


def _tar(member: str, content: bytes, here: Path) -> Words:
    words = _align(here)
    with tarfile.open(here / "captions" / "a.tar", "w") as archive:
        archive.add(here / "captions" / "red0.png", "red0.png")
        info = tarfile.TarInfo(member)
        info.size = len(content)
        archive.addfile(info, io.BytesIO(content))
    return ["captions/a.tar" if word == _LIST else word for word in words]


def _damaged_list(seed: int, here: Path) -> Words:
    words, choice, file = _align(here), random.Random(seed), here / _LIST
    content = bytearray(file.read_bytes())
    for _ in range(choice.randint(1, 6)):
        content[choice.randrange(len(content))] = choice.randrange(256)
    file.write_bytes(content)
    return words


# -- special files


def _special_files() -> Iterator[Case]:
    cause = "alignment: special files"

    def prepare(here: Path, words: Sequence[str], make: Callable[[Path], None], file: str) -> Words:
        found = _align(here, *words)
        make(here / file)
        return found

    for kind, make in KINDS.items():
        for name, words, file, exits in (
            ("an image", ["data.max_bad_share=0.5"], "captions/red0.png", _EITHER),
            ("the captions", [], _LIST, (2,)),
            ("the weights", [], "w.safetensors", (2,)),
            ("the text model", ["--text", "text"], "text", (2,)),
        ):
            arguments = {"words": words, "make": make, "file": file}
            kept = ("out", "out/*") if name == "an image" else ()
            yield Case(f"{name}: {kind}", cause, partial(prepare, **arguments), exits, kept=kept, inside=no_network)


# -- damaged runs

_COMMANDS: dict[str, tuple[Words, Words]] = {  # the words, and what may change when they succeed
    "resume": (["align", "--resume", "run"], ["run", "run/*"]),
    "evaluate": (["evaluate", "run", "--data", _LIST, "--protocols", "text-retrieval"], ["run/eval", "run/eval/*"]),
    "report": (["report", "run"], ["run/report.html"]),
    "embed": (["embed", "run", "--data", "captions", "--out", "out.npz"], ["out*"]),
    "export": (["export", "run", "--to", "safetensors", "--out", "out"], ["out*"]),
    "overwrite": (["align", "w.safetensors", "--data", _LIST, "--out", "run", "--overwrite", *materials.ALIGNING],
                  ["run", "run/*"]),
}  # fmt: skip
_FILES = {
    "config.yaml": ("resume", "report"),
    "metrics.jsonl": ("resume", "report"),
    "eval/text-retrieval.json": ("report", "evaluate"),
    "encoder.safetensors": ("resume", "embed", "evaluate"),
    "alignment.safetensors": ("resume", "embed", "evaluate", "report", "export"),
    f"{_LAST}/state.json": ("resume",),
    f"{_LAST}/log.safetensors": ("resume",),
    f"{_LAST}/method.safetensors": ("resume",),
}
_EDITS: dict[str, Any] = {
    "trainer.seed": 1,
    "trainer.steps": 40,
    "optim.lr": 0.1,
    "loss.name": "softmax",
    "probe.tokens": "class",
    "text.dim": 32,
    "text.vocabulary": 3,
    "text.name": "hf:nobody/nothing",
    "data.held_out": 0.5,
}
_LEAVES = _words(
    """
    source source.path data.path data.split text text.name probe probe.heads loss loss.scale optim.betas trainer.steps
    trainer.devices checkpoint monitor.log_every
    """
)


def _damaged_runs(choice: random.Random) -> Iterator[Case]:
    cause = "alignment: damaged runs"
    for file, commands in _FILES.items():
        for name, content in CONTENTS.items():
            for command in commands:
                yield _case(cause, f"{file} {name}", written(file, content), command)
        for name, make in PLACES.items():
            for command in commands:
                yield _case(cause, f"{file} {name}", replaced(file, make), command)
    for number in range(6):
        change = flipped("alignment.safetensors", choice.random() ** 3)  # more often in the header
        for command in ("embed", "resume"):
            exits = (2,) if command == "embed" else _EITHER
            yield _case(cause, f"alignment.safetensors, bit {number}", change, command, exits)
    for command in _COMMANDS:
        yield _case(cause, "undamaged", lambda run: None, command, (0,))
        yield _case(cause, "checkpoints gone", lambda run: shutil.rmtree(run / "checkpoints"), command)
    cause = "alignment: another recipe"
    for key, value in _EDITS.items():
        yield _case(cause, f"{key} = {value}", edited(key, value), "resume", (2,))
    cause = "alignment: wrong values in a recipe"
    for key in _LEAVES:
        for wrong in choice.sample(WRONG, 3):
            name = f"{key} = {wrong!r}"[:60]
            yield _case(cause, name, edited(key, wrong), choice.choice(("resume", "report")))


def _case(cause: str, name: str, change: Change, command: str, exits: Sequence[int] = _EITHER) -> Case:
    words, outputs = _COMMANDS[command]

    def prepare(here: Path) -> Words:
        _align(here)
        change(materials.aligned(here / "run"))
        return words

    return Case(f"{name}, {command}", cause, prepare, exits, outputs, inside=no_network)


# -- alignments that describe something else

_TEXT = "text.config"
_DESCRIPTIONS: dict[str, list[Any]] = {
    "kind": ["encoder", None],
    "tokens": ["x", None, ["sparse"]],
    "probe": [None, [], {}],
    "probe.dim": [1 << 40, 0, -1, "x"],
    "probe.heads": [0, 7, 1 << 20],
    "probe.mlp_ratio": [1e12, -1, "x"],
    "encoder": ["", None, 5, "0" * 32],
    "step": [-1, "x"],
    "text": [
        None, [], {},
        {"kind": "frozen", "name": "hf:attacker/model", "fingerprint": "0"},
        {"kind": "frozen", "name": "open_clip:ViT-B-32:laion2b_s34b_b79k", "fingerprint": "0"},
        {"kind": "frozen", "name": "open_clip:hf-hub:attacker/model", "fingerprint": "0"},
        {"kind": "frozen", "name": "/etc", "fingerprint": "0"},
        {"kind": "frozen", "name": "https://attacker.example/", "fingerprint": "0"},
        {"kind": "frozen", "name": ["x"], "fingerprint": "0"},
        {"kind": "frozen"},
        {"kind": "os.system", "name": "touch owned"},
    ],
    "text.words": [None, 5, [5], ["a"] * 2_000_000, ["a" * 5000] * 3, {"a": 1}],
    "text.config": [None, [], {"nothing": 1}],
    f"{_TEXT}.dim": [1 << 24, 0, -16, "x"],
    f"{_TEXT}.depth": [10_000, 0],
    f"{_TEXT}.context": [1 << 30, 0],
    f"{_TEXT}.name": ["hf:attacker/model"],
}  # fmt: skip


def _descriptions() -> Iterator[Case]:
    def prepare(here: Path, key: str, value: Any) -> Words:
        materials.captions(here / "captions")
        redescribed(materials.aligned(here / "run") / "alignment.safetensors", set_to(key, value))
        return ["embed", "run", "--data", "captions", "--out", "out.npz"]

    for key, values in _DESCRIPTIONS.items():
        for value in values:
            exits = _EITHER if key in (f"{_TEXT}.name", "kind") else (2,)  # a file of another kind is not an alignment
            yield Case(
                f"{key} = {str(value)[:60]}",
                "alignment: files that describe an attack",
                partial(prepare, key=key, value=value),
                exits,
                inside=no_network,
                megabytes=1200,
            )


# -- captions, and names of words, as attacks


def _hostile() -> Iterator[Case]:
    cause = "alignment: hostile captions"

    def trained(here: Path, text: str, words: Words) -> Words:
        _align(here)
        lines = [json.loads(line) for line in (here / _LIST).read_text().splitlines()]
        for line in lines:
            line["captions"] = [f"{text} {caption}" for caption in line["captions"]]
            line["category"] = line["pair"] = text
            line["negatives"] = [{"text": text, "kind": text}]
        (here / _LIST).write_text("\n".join(map(json.dumps, lines)))
        ended = execute(["align", "w.safetensors", "--data", _LIST, "--out", "out", *materials.ALIGNING], here)
        assert ended.code == 0, ended.errors
        return words

    for kind, text in (("markup", MARKUP), ("escapes", _ESCAPE)):
        for name, words in {
            "report": ["report", "out"],
            "evaluate": ["evaluate", "out", "--data", _LIST, "--protocols", "text-retrieval,composition"],
            "embed": ["embed", "out", "--data", "captions", "--out", "out.npz"],
        }.items():
            prepare = partial(trained, text=text, words=words)
            yield Case(f"{name}, captions with {kind}", cause, prepare, (0,), check=nothing_hostile)

    def searched(here: Path, text: str) -> Words:
        model, data = materials.aligned(here / "run"), materials.captions(here / "captions")
        materials.index(here / "index.npz", model, data)
        return ["search", "run", "--index", "index.npz", "--text", text, "--out", "out.html"]

    def pointed(here: Path, text: str) -> Words:
        materials.aligned(here / "run"), materials.captions(here / "captions")
        return ["concepts", "run", "captions/red0.png", "--text", text, "--out", "out"]

    for kind, text in (("markup", MARKUP), ("escapes", _ESCAPE), ("half a character", "a \udcff")):
        yield Case(f"search --text, {kind}", cause, partial(searched, text=text), _EITHER, check=nothing_hostile)
        yield Case(f"concepts --text, {kind}", cause, partial(pointed, text=text), _EITHER, check=nothing_hostile)
