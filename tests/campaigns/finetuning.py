"""Fine-tuning and what uses its runs: bad settings and data, damaged runs and models, kills, disks, and attacks.

The other campaigns test what these commands share with the rest; here are their own files (`model.safetensors`) and
settings. A run killed at any instant and then resumed must have the bytes of an undisturbed one.
"""

from __future__ import annotations

import contextlib
import functools
import json
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from asterism.nn.safetensors_file import METADATA_KEY, write_safetensors
from asterism.train import checkpoint
from tests.campaigns import materials
from tests.campaigns.campaign import Case
from tests.campaigns.disks import no_large_files, read_only, small_disk
from tests.campaigns.inputs import IMAGES, KINDS
from tests.campaigns.processes import Ended, computed, execute
from tests.campaigns.run_folders import (
    CONTENTS,
    PLACES,
    WRONG,
    Change,
    both,
    edited,
    flipped,
    replaced,
    written,
)
from tests.campaigns.security import no_network

Words = list[str]
_LAST = "checkpoints/step-00000002"
_EITHER = (0, 2)
_SMALL_MEMORY = 1200  # megabytes, of which the imports take 600


def cases(seed: int) -> Iterator[Case]:
    yield from _settings()
    yield from _data()
    yield from _special_files()
    yield from _meaning()
    yield from _damaged_runs(seed)
    yield from _models()
    yield from _attacks()
    yield from _writers()
    yield from _disks()
    yield from _kills(seed)


# -- the commands


def _finetune(here: Path, *words: str) -> Words:
    materials.labelled(here / "photos"), materials.weights(here / "w.safetensors")
    given = ["--task", "classify", "--data", "photos", "--out", "out"]
    return ["finetune", "w.safetensors", *given, *materials.FINETUNING, *words]


def _predict(here: Path, *words: str) -> Words:
    materials.labelled(here / "photos"), materials.finetuned(here / "run")
    return ["predict", "run", "--images", "photos", "--out", "out", *words]


# -- settings


def _words(text: str) -> Words:
    return text.split()


BAD_SETTINGS = _words(
    """
    task=nothing task.name=[a] task.name=null task=5 task.nothing=1 task.label_smoothing=1 task.label_smoothing=-0.1
    task.label_smoothing=.nan task.mixing.mixup=-1 task.mixing.mixup=.nan task.mixing.nothing=1
    task.augmentation.erasing=2 task.augmentation.scale=[1,0.5] task.augmentation.scale=[0,1]
    task.augmentation.flip=.nan head=nothing head=5 head=first-layer head.std=-1 head.std=.nan head.pooling=x
    head.pooling=sparse head.hidden=5 source.image_size=17 source.image_size=0 source.image_size=-16
    source.image_size=99999999 source.drop_path=1 source.drop_path=-0.5 source.weights=x source.network={}
    source.path=elsewhere data.path=5 data.path=[] data.path=null data.split=nothing data.label_share=0
    data.label_share=2 data.label_share=.nan data.label_list=nowhere.txt data.label_list=photos data.workers=-1
    data.prefetch=0 data.max_bad_share=2 data=5 optim.name=x optim.lr=-1 optim.lr=.nan optim.lr=.inf
    optim.lr_batch=0 optim.schedule=x optim.power=0 optim.milestones=[2] optim.milestones=[.nan]
    optim.warmup_epochs=-1 optim.warmup_epochs=.inf optim.warmup_steps=-1 optim.layer_decay=0 optim.layer_decay=2
    optim.layer_decay=.nan optim.weight_decay=-1 optim.momentum=1 optim.betas=[0.9] optim.betas=[0.9,1.0]
    optim.clip=-1 optim.clip=.nan average.decay=1 average.decay=.nan average=5 validation.share=0 validation.share=1
    validation.share=.nan validation.every_epochs=0 validation.every_epochs=.nan validation.patience=0
    validation.patience=-1 validation=[] trainer.steps=0 trainer.steps=-1 trainer.steps=99999999999999999999
    trainer.batch_size=0 trainer.batch_size=-4 trainer.batch_size=3 trainer.accumulate=0 trainer.accumulate=3
    trainer.seed=-1 trainer.seed=99999999999999999999999 trainer.devices=0 trainer.precision=8
    trainer.accelerator=tpu trainer.strategy=x checkpoint.every_steps=0 checkpoint.keep_last=0 monitor.log_every=0
    monitor=5 nothing.nothing=1 nothing=1 =1 trainer.steps trainer..steps=3
    """
)
BAD_PROBES = _words(
    """
    task.learning_rates=[] task.learning_rates=[0] task.learning_rates=[.nan] task.learning_rates=5
    task.learning_rates=[-1] task.feature=x task.head=linear
    """
)
BAD_LENGTHS = ("0", "-1", ".nan", ".inf", "1e400", "[1]", "x")


def _settings() -> Iterator[Case]:
    cause = "fine-tuning: settings"
    for text in BAD_SETTINGS:
        yield Case(f"classify {text}", cause, partial(_with_words, (text,)))
    for text in BAD_PROBES:
        yield Case(f"probe {text}", cause, partial(_with_words, ("--task", "probe", text)))
    for length in BAD_LENGTHS:
        for name in ("epochs", "minutes"):
            words = ("trainer.steps=null", f"trainer.{name}={length}")
            yield Case(f"trainer.{name}={length}", cause, partial(_with_words, words))
    for number in ("0", "-1", "x", "1.5"):
        yield Case(f"predict --batch-size {number}", cause, lambda here, n=number: _predict(here, "--batch-size", n))  # type: ignore[misc]
    for name, words in {
        "no source": ["finetune", "--task", "classify", "--data", "photos"],
        "no data": ["finetune", "w.safetensors", "--task", "classify"],
        "no task": ["finetune", "w.safetensors", "--data", "photos"],
        "task and recipe": ["finetune", "w.safetensors", "--task", "probe", "--recipe", "x", "--data", "photos"],
        "unknown recipe": ["finetune", "w.safetensors", "--recipe", "x", "--data", "photos"],
        "recipe is a folder": ["finetune", "w.safetensors", "--recipe", "photos", "--data", "photos"],
        "recipe of pretraining": ["finetune", "w.safetensors", "--recipe", "dino", "--data", "photos"],
        "resume and source": ["finetune", "w.safetensors", "--resume", "photos"],
        "resume a folder of images": ["finetune", "--resume", "photos"],
        "resume nothing": ["finetune", "--resume", "nowhere"],
        "resume a file": ["finetune", "--resume", "w.safetensors"],
        "unknown device": ["predict", "w.safetensors", "--images", "photos", "--device", "x"],
    }.items():
        yield Case(name, cause, partial(_with_inputs, words))


def _with_words(words: Sequence[str], here: Path) -> Words:
    return _finetune(here, *words)


def _with_inputs(words: Words, here: Path) -> Words:
    _finetune(here)
    return words


# -- labelled images


def _remove(*names: str) -> Callable[[Path], object]:
    def change(photos: Path) -> None:
        for name in names:
            path = photos / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    return change


def _only_one(photos: Path) -> None:
    """Each class has one image, so none can be held out."""
    for path in photos.glob("*/00[123].png"):
        path.unlink()


def _flat(photos: Path) -> None:
    """Images without labels."""
    for path in list(photos.glob("*/*.png")):
        path.rename(photos / f"{path.parent.name}{path.name}")
    for path in list(photos.iterdir()):
        if path.is_dir():
            path.rmdir()


def _all_bad(photos: Path) -> None:
    for path in photos.glob("*/*.png"):
        path.write_bytes(b"not an image")


_DATA: dict[str, tuple[Callable[[Path], object], Sequence[int]]] = {
    "one class": (_remove("red", "blue"), (2,)),
    "no classes": (_flat, (2,)),
    "one image per class": (_only_one, (2,)),
    "an empty class": (lambda photos: (photos / "zebra").mkdir(), _EITHER),
    "all images are damaged": (_all_bad, (2,)),
    "gone": (lambda photos: shutil.rmtree(photos), (2,)),
    "a file": (lambda photos: (shutil.rmtree(photos), photos.write_text("x")), (2,)),
}


def _data() -> Iterator[Case]:
    cause = "fine-tuning: labelled images"

    def prepare(here: Path, change: Callable[[Path], object], words: Sequence[str] = ()) -> Words:
        found = _finetune(here, *words)
        change(here / "photos")
        return found

    bad_list = ("out", "out/bad_images.jsonl", "out/*")  # which the sentence names
    for name, (change, exits) in _DATA.items():
        yield Case(f"finetune, {name}", cause, partial(prepare, change=change), exits, kept=bad_list)
    for kind, make in IMAGES.items():
        place = partial(_put, make)
        slow = kind.startswith("13000")
        words = ("data.max_bad_share=0.5",)
        yield Case(
            f"finetune, {kind}", cause, partial(prepare, change=place, words=words), _EITHER, kept=bad_list, slow=slow
        )
        yield Case(f"predict, {kind}", cause, partial(_predict_one, make), exits=_EITHER, slow=slow)
        yield Case(f"predict {kind} alone", cause, partial(_predict_alone, make), exits=_EITHER, slow=slow)

    def evaluate(here: Path, change: Callable[[Path], object]) -> Words:
        materials.labelled(here / "photos"), materials.finetuned(here / "run")
        change(here / "photos")
        return ["evaluate", "run", "--data", "photos"]

    for name, change, exits in (
        ("an unknown class", lambda photos: (photos / "red").rename(photos / "zebra"), (2,)),
        ("a missing class", _remove("red"), (0,)),
        ("no classes", _flat, (2,)),
        ("all images are damaged", _all_bad, (2,)),
    ):
        outputs = ("run/eval", "run/eval/*")
        yield Case(f"evaluate, {name}", cause, partial(evaluate, change=change), exits, outputs)


def _put(make: Callable[[], bytes], photos: Path) -> None:
    (photos / "red" / "000.png").write_bytes(make())


def _predict_one(make: Callable[[], bytes], here: Path) -> Words:
    words = _predict(here)
    _put(make, here / "photos")
    return words


def _predict_alone(make: Callable[[], bytes], here: Path) -> Words:
    materials.finetuned(here / "run")
    (here / "x.png").write_bytes(make())
    return ["predict", "run", "--images", "x.png", "--out", "out"]


# -- special files


def _special_files() -> Iterator[Case]:
    cause = "fine-tuning: special files"

    def prepare(
        here: Path, command: Callable[..., Words], words: Words, make: Callable[[Path], None], file: str
    ) -> Words:
        found = command(here, *words)
        make(here / file)
        return found

    for kind, make in KINDS.items():
        kept = ("out", "out/*")
        for name, command, words, file, exits in (
            ("finetune, among images", _finetune, ["data.max_bad_share=0.5"], "photos/red/x.png", _EITHER),
            ("finetune, weights", _finetune, [], "w.safetensors", (2,)),
            ("finetune, list of labels", _finetune, ["data.label_list=list.txt"], "list.txt", (2,)),
            ("predict, among images", _predict, [], "photos/red/x.png", _EITHER),
            ("predict, the image", _predict, ["--images", "x.png"], "x.png", (2,)),
            ("predict, the video", _predict, ["--images", "x.mp4"], "x.mp4", (2,)),
            ("predict, the model", _predict, [], "run/model.safetensors", (2,)),
        ):
            arguments = {"command": command, "words": words, "make": make, "file": file}
            yield Case(f"{name}: {kind}", cause, partial(prepare, **arguments), exits, kept=kept)
        recipe = ["finetune", "w.safetensors", "--recipe", "r.yaml", "--data", "photos", "--out", "out"]
        prepare_recipe = partial(_special_recipe, make, recipe)
        yield Case(f"recipe: {kind}", cause, prepare_recipe)


def _special_recipe(make: Callable[[Path], None], words: Words, here: Path) -> Words:
    _finetune(here)
    make(here / "r.yaml")
    return words


# -- runs and models of the wrong kind


def _meaning() -> Iterator[Case]:
    cause = "fine-tuning: runs of another kind"

    def prepare(here: Path, words: Words) -> Words:
        materials.labelled(here / "photos"), materials.weights(here / "w.safetensors")
        materials.run(here / "pretrained"), materials.finetuned(here / "run")
        return words

    refused = {
        "predict with a pretrained run": ["predict", "pretrained", "--images", "photos", "--out", "out"],
        "predict with weights": ["predict", "w.safetensors", "--images", "photos", "--out", "out"],
        "resume a pretrained run": ["finetune", "--resume", "pretrained"],
        "pretrain --resume": ["pretrain", "--resume", "run"],
        "concepts": ["concepts", "run", "photos/red/000.png", "--out", "out"],
        "reconstruct": ["reconstruct", "run", "photos/red/000.png", "--out", "out"],
        "another setting": ["finetune", "--resume", "run", "optim.lr=3"],
        "another source": ["finetune", "--resume", "run", "source.path=elsewhere"],
        "other data": ["finetune", "--resume", "run", "data.path=pretrained"],
        "several kinds in a report": ["report", "run", "pretrained"],
    }
    for name, words in refused.items():
        yield Case(name, cause, partial(prepare, words=words), _EITHER if name.startswith("several") else (2,))
    allowed = {
        "finetune from it": ["finetune", "run", "--task", "probe", "--data", "photos", "--out", "out",
                             *materials.FINETUNING, "task.learning_rates=[1.0]"],
        "pretrain from it": ["pretrain", *materials.DINO, "--data", "photos", "--init", "run", "--out", "out"],
        "embed": ["embed", "run", "--data", "photos", "--out", "out.npz"],
        "evaluate knn": ["evaluate", "run", "--data", "photos", "--protocols", "knn", "knn.k=2", "--out", "out"],
        "export": ["export", "run", "--to", "torchscript", "--out", "out"],
        "data moved": ["finetune", "--resume", "run", "data.path=photos"],
    }  # fmt: skip
    for name, words in allowed.items():
        yield Case(name, cause, partial(prepare, words=words), (0,))


# -- damaged runs


@dataclass(frozen=True)
class Damage:
    """A change of a fine-tuned run, the commands to try, and those that must not succeed."""

    cause: str
    name: str
    change: Change
    commands: Sequence[str] = ("resume", "report", "evaluate")
    refused: Sequence[str] = ()


_COMMANDS: dict[str, tuple[Words, Words]] = {  # the words, and what may change when they succeed
    "resume": (["finetune", "--resume", "run"], ["run", "run/*"]),
    "predict": (["predict", "run", "--images", "photos", "--out", "out"], ["out*"]),
    "evaluate": (["evaluate", "run", "--data", "photos"], ["run/eval", "run/eval/*"]),
    "evaluate without data": (["evaluate", "run"], ["run/eval", "run/eval/*"]),
    "report": (["report", "run"], ["run/report.html"]),
    "export": (["export", "run", "--to", "safetensors", "--out", "out"], ["out*"]),
    "embed": (["embed", "run", "--data", "photos", "--out", "out.npz"], ["out*"]),
    "overwrite": (["finetune", "w.safetensors", "--task", "classify", "--data", "photos", "--out", "run",
                   "--overwrite", *materials.FINETUNING], ["run", "run/*"]),
}  # fmt: skip
_FILES = {
    "config.yaml": ("resume", "report", "evaluate without data"),
    "metrics.jsonl": ("resume", "report"),
    "eval/classify.json": ("report", "evaluate"),
    "encoder.safetensors": ("resume", "embed", "predict"),
    "model.safetensors": ("resume", "predict", "evaluate", "report", "export"),
    f"{_LAST}/state.json": ("resume",),
    f"{_LAST}/method.safetensors": ("resume",),
}
_EDITS: dict[str, Any] = {
    "trainer.seed": 1,
    "trainer.steps": 40,
    "trainer.batch_size": 2,
    "optim.lr": 0.1,
    "optim.layer_decay": 0.5,
    "task.label_smoothing": 0.5,
    "task.name": "probe",
    "task.head.pooling": "mean",
    "task.head.name": "first-layer",
    "validation.share": 0.5,
    "validation": None,
    "average": None,
    "source.network.image_size": 32,
    "source.network.mean": [0.1, 0.1, 0.1],
    "source.network.architecture.arguments.depth": 2,
    "source.weights": "fresh",
    "data.label_share": 0.5,
}
_LEAVES = (
    "task", "task.name", "task.head", "task.head.name", "source", "source.network", "source.network.architecture",
    "source.network.architecture.name", "source.network.std", "source.options", "source.path", "data.path",
    "data.split", "optim.betas", "optim.layer_decay", "trainer.steps", "trainer.devices", "validation", "average",
    "checkpoint", "monitor.log_every",
)  # fmt: skip


def _damaged_runs(seed: int) -> Iterator[Case]:
    choice = random.Random(seed)
    for damage in _damages(choice):
        for command in damage.commands:
            yield _case(damage, command)


def _damages(choice: random.Random) -> Iterator[Damage]:
    cause = "fine-tuning: damaged runs"
    for file, commands in _FILES.items():
        for name, content in CONTENTS.items():
            yield Damage(cause, f"{file} {name}", written(file, content), commands)
        for name, make in PLACES.items():
            yield Damage(cause, f"{file} {name}", replaced(file, make), commands)
    for file in (f"{_LAST}/method.safetensors", f"{_LAST}/optimizer.safetensors", f"{_LAST}/state.json"):
        for number in range(3):
            yield Damage(cause, f"{file}, bit {number}", flipped(file, choice.random()), ("resume",))
    for number in range(6):
        change = flipped("model.safetensors", choice.random() ** 3)  # more often in the header
        yield Damage(cause, f"model.safetensors, bit {number}", change, ("predict", "resume"), ("predict",))
    yield Damage(cause, "model and encoder gone", _remove("model.safetensors", "encoder.safetensors"), ("resume",))
    yield Damage(cause, "checkpoints gone", _remove("checkpoints"), tuple(_COMMANDS), ("resume",))
    yield Damage(cause, "undamaged", lambda run: None, tuple(_COMMANDS))
    cause = "fine-tuning: another recipe"
    for key, value in _EDITS.items():
        for newest in (True, False):
            name = f"{key} = {value}, {'finished' if newest else 'unfinished'}"
            change = edited(key, value) if newest else both(edited(key, value), _remove(_LAST))
            yield Damage(cause, name, change, ("resume",), ("resume",))
    cause = "fine-tuning: wrong values in a recipe"
    for key in _LEAVES:
        for wrong in choice.sample(WRONG, 3):
            command = choice.choice(("resume", "report", "evaluate without data", "evaluate"))
            yield Damage(cause, f"{key} = {wrong!r}"[:60], edited(key, wrong), (command,))


def _case(damage: Damage, command: str) -> Case:
    words, outputs = _COMMANDS[command]

    def prepare(here: Path) -> Words:
        materials.labelled(here / "photos"), materials.weights(here / "w.safetensors")
        damage.change(materials.finetuned(here / "run"))
        return words

    exits = (2,) if command in damage.refused else _EITHER
    check = _has_a_model if command == "resume" else None
    return Case(f"{damage.name}, {command}", damage.cause, prepare, exits, outputs, check=check, seconds=300)


def _has_a_model(here: Path, ended: Ended) -> str | None:
    """A run that says it is finished has a model that can be used."""
    if ended.code == 2:
        return None
    from asterism.finetuning.model import load_model

    load_model(here / "run")
    return None


# -- models that describe something else


def described(file: Path) -> dict[str, Any]:
    with safe_open(file, framework="pt") as opened:
        return json.loads(opened.metadata()[METADATA_KEY])


def _with_description(here: Path, change: Callable[[dict[str, Any]], object], signed: bool) -> Words:
    """signed: with a checksum that is right, so that only the values are wrong."""
    words = _predict(here)
    file = here / "run" / "model.safetensors"
    tensors, description = load_file(file), described(file)
    description.pop("checksum")
    change(description)
    if signed:
        write_safetensors(file, tensors, description)
    else:
        save_file(tensors, file, {METADATA_KEY: json.dumps(description)})
    return words


def set_to(key: str, value: Any) -> Callable[[dict[str, Any]], object]:
    def change(description: dict[str, Any]) -> None:
        *parents, last = key.split(".")
        node = description
        for parent in parents:
            node = node[parent]
        node[last] = value

    return change


_ARGUMENTS = "network.architecture.arguments"
_DESCRIPTIONS: Mapping[str, Any] = {
    "kind": ["encoder", None, 5],
    "task": [None, [], {}, {"name": "nothing"}, {"name": "os.system"}, {"name": ["classify"]}, {"name": "probe"}],
    "task.name": ["probe", "../../evil", "asterism.evil:Evil", None],
    "task.head": [None, "nothing", {"name": "first-layer"}, {"name": "first-layer", "hidden": 10**9},
                  {"name": "first-layer", "hidden": -1}, {"name": "linear", "norm": True}],
    "task.nothing": [1],
    "classes": [[], ["a"], None, [1, 2, 3], ["a"] * 900_000, ["a" * 5000] * 3, "abc", {"a": 1}],
    "step": [-1, "x", {"a": 1}, 10**30],
    "network": [None, {}, []],
    "network.mean": [["a", "b", "c"], [float("nan")] * 3, 5],
    "network.std": [[0, 0, 0], None],
    "network.image_size": [1 << 40, -16, "16", 17],
    "network.architecture": [None, {"name": "https://attacker.example/"}],
    "network.architecture.name": ["hf-hub:attacker/model", "local-dir:/etc", "no_such_model", ""],
    f"{_ARGUMENTS}.pretrained": [True],
    f"{_ARGUMENTS}.pretrained_cfg_overlay": [{"url": "http://attacker.example/w.pth"}],
    f"{_ARGUMENTS}.checkpoint_path": ["/etc/passwd"],
    f"{_ARGUMENTS}.embed_dim": [1 << 20, -16, 0],
    f"{_ARGUMENTS}.depth": [10_000, -1],
    f"{_ARGUMENTS}.norm_layer": ["os.system"],
}  # fmt: skip


def _models() -> Iterator[Case]:
    for key, values in _DESCRIPTIONS.items():
        for value in values:
            for signed in (True, False):
                yield Case(
                    f"{key} = {str(value)[:50]}{'' if signed else ', without checksum'}",
                    "fine-tuning: models that describe an attack",
                    partial(_with_description, change=set_to(key, value), signed=signed),
                    inside=no_network,
                    megabytes=_SMALL_MEMORY,
                )


# -- attacks

MARKUP, _ESCAPE = "<img src=x onerror=alert(1)>", "\x1b]0;owned\x07\x1b[2J"


def _attacks() -> Iterator[Case]:
    def evil(file: Path) -> None:
        class Evil:
            def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
                import os

                return os.system, ("touch owned",)

        torch.save({"state_dict": {"a": Evil()}}, file)

    def pickled(here: Path, suffix: str) -> Words:
        words = _finetune(here)
        evil(here / f"evil{suffix}")
        return [f"evil{suffix}" if word == "w.safetensors" else word for word in words]

    for suffix in (".pth", ".safetensors", ".ckpt"):
        yield Case(f"source{suffix}", "fine-tuning: pickles that run code", partial(pickled, suffix=suffix))

    def model(here: Path) -> Words:
        words = _predict(here)
        evil(here / "run" / "model.safetensors")
        return words

    yield Case("model", "fine-tuning: pickles that run code", model)

    def renamed(here: Path, name: str, words: Words) -> Words:
        found = _predict(here)
        with_name = set_to("classes", [f"{name}{number}" for number in range(3)])
        redescribed(here / "run" / "model.safetensors", with_name)
        for number, folder in enumerate(("blue", "green", "red")):
            (here / "photos" / folder).rename(here / "photos" / f"{name}{number}")
        return words or found

    for kind, name in (("markup", MARKUP), ("escapes", _ESCAPE), ("a formula", "=cmd|' -C calc'!A")):
        for command, words in {"predict": [], "evaluate": ["evaluate", "run", "--data", "photos"]}.items():
            yield Case(
                f"{command}, classes with {kind}",
                "fine-tuning: hostile names",
                partial(renamed, name=name, words=words),
                _EITHER,
                ("out*", "run/eval", "run/eval/*"),
                check=nothing_hostile,
            )

    def hostile_run(here: Path, name: str) -> Words:
        words = _finetune(here)
        for folder in ("blue", "green", "red"):
            (here / "photos" / folder).rename(here / "photos" / f"{name}{folder}")
        ended = execute(words, here, seconds=300)
        assert ended.code == 0, ended.errors
        return ["report", "out"]

    for kind, name in (("markup", MARKUP), ("escapes", _ESCAPE)):
        prepare = partial(hostile_run, name=name)
        yield Case(f"report, classes with {kind}", "fine-tuning: hostile names", prepare, (0,), check=nothing_hostile)

    def linked(here: Path, file: str) -> Words:
        materials.labelled(here / "photos")
        run = materials.finetuned(here / "run")
        (here / "precious").write_text("precious")
        shutil.rmtree(run / _LAST)
        (run / file).unlink(missing_ok=True)
        (run / file).symlink_to(here / "precious")
        return ["finetune", "--resume", "run", "data.path=photos"]

    for file in ("model.safetensors", "encoder.safetensors", "metrics.jsonl", "checkpoints/last", "bad_images.jsonl"):
        yield Case(
            f"resume, {file}",
            "fine-tuning: planted links",
            partial(linked, file=file),
            _EITHER,
            ("run", "run/*"),
            kept=("run/*",),
            check=_precious,
        )


def redescribed(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    tensors, description = load_file(file), described(file)
    description.pop("checksum")
    change(description)
    write_safetensors(file, tensors, description)


def nothing_hostile(here: Path, ended: Ended) -> str | None:
    if "\x1b" in ended.output + ended.errors:
        return "control characters reach the terminal"
    pages = [page for page in here.rglob("*.html") if "<img src=x" in page.read_text()]
    return f"{pages[0].name} contains markup" if pages else None


def _precious(here: Path, ended: Ended) -> str | None:
    return None if (here / "precious").read_text() == "precious" else "a planted link was followed"


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
def _held(here: Path, name: str) -> Iterator[None]:
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
    cause = "fine-tuning: two writers"

    def existing(here: Path, words: Words) -> Words:
        _finetune(here)
        materials.finetuned(here / "run")
        return words

    for name, folder, words in (
        ("resume", "run", _COMMANDS["resume"][0]),
        ("overwrite", "run", _COMMANDS["overwrite"][0]),
        ("new", "out", None),
    ):
        prepare = _finetune if words is None else partial(existing, words=words)
        yield Case(name, cause, prepare, around=partial(_held, name=folder), check=_names_the_owner)


def _names_the_owner(here: Path, ended: Ended) -> str | None:
    return None if "is being written by process" in ended.errors else f"the owner is not named: {ended.errors}"


# -- disks


def _disks() -> Iterator[Case]:
    """While the second step is trained; then the first checkpoint must be good."""
    cause = "fine-tuning: full and failing disks"

    def unfinished(here: Path, words: Words) -> Words:
        materials.labelled(here / "photos")
        shutil.rmtree(materials.finetuned(here / "run") / _LAST)
        return ["finetune", "--resume", "run", "data.path=photos", *words]

    def full(here: Path, kilobytes: int) -> AbstractContextManager[None]:
        return small_disk(here / "run", kilobytes)

    case = partial(
        Case,
        cause=cause,
        outputs=("run", "run/*"),
        kept=("run/metrics.jsonl", "run/encoder.safetensors", "run/model.safetensors"),
        check=_first_is_good,
        seconds=300,
    )
    for workers in (0, 1):
        prepare = partial(unfinished, words=[f"data.workers={workers}"])
        for kilobytes in (0, 8, 40, 80, 160):
            disk = partial(full, kilobytes=kilobytes)
            yield case(f"{kilobytes} kB left, {workers} workers", prepare=prepare, exits=_EITHER, around=disk)
        yield case(f"read-only, {workers} workers", prepare=prepare, around=lambda here: read_only(here / "run"))
        yield case(f"files cannot grow, {workers} workers", prepare=prepare, inside=no_large_files)


def _first_is_good(here: Path, ended: Ended) -> str | None:
    checkpoint.verify(here / "run" / "checkpoints" / "step-00000001")
    left = [path.name for path in (here / "run").rglob(".*")]
    return f"left behind: {left}" if left else None


# -- kills

_KILLS = 24
# Measured at every second step; records of four steps, which a kill divides.
_LONG = ["trainer.steps=10", "monitor.log_every=4", "validation.every_epochs=0.6"]


def _kills(seed: int) -> Iterator[Case]:
    """SIGKILL at random instants of training, measuring and saving, again and again; then resumed to the end."""
    choice = random.Random(f"{seed} kills")
    for number in range(_KILLS):
        held_out = number % 2 == 0
        instants = [round(choice.uniform(0.0, 1.2), 3) for _ in range(2)]
        yield Case(
            f"{number}, {'best' if held_out else 'last'} weights, after {instants} s of computing",
            "fine-tuning: resumed after kills",
            partial(_killed, instants=instants, held_out=held_out),
            (0,),
            ("run", "run/*"),
            check=partial(_equals_undisturbed, held_out=held_out),
            seconds=300,
            slow=number > 1,
        )


def _long(here: Path, held_out: bool) -> Words:
    words = [*_finetune(here), *_LONG, *([] if held_out else ["validation=null"])]
    words = [word for word in words if held_out or not word.startswith("validation.")]
    return ["run" if word == "out" else word for word in words]


def _killed(here: Path, instants: Sequence[float], held_out: bool) -> Words:
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
    last = list((run / "checkpoints" / "last").iterdir())
    files = [run / "model.safetensors", run / "encoder.safetensors", *sorted(last)]
    losses = [json.loads(line).get("loss") for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {path.name: path.read_bytes() for path in files} | {"losses": json.dumps(losses).encode()}


def _equals_undisturbed(here: Path, ended: Ended, held_out: bool) -> str | None:
    whole, parts = _undisturbed(held_out), _results(here / "run")
    differ = sorted(name for name in {*whole, *parts} if whole.get(name) != parts.get(name))
    return f"differs from the undisturbed run: {', '.join(differ)}" if differ else None
