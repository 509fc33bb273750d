"""Everything that comes in: settings, YAML, paths, special files, images, tar shards, weights, annotations.

Each case gives one bad input to one command. Some are tolerable: a pipe among photographs is skipped and recorded.
"""

from __future__ import annotations

import io
import json
import os
import random
import struct
import tarfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from tests.campaigns import materials
from tests.campaigns.campaign import Case

Words = list[str]
Fill = Callable[[Path], None]
_SKIPPED = (0,)
_EITHER = (0, 2)


def cases(seed: int = 0) -> Iterator[Case]:
    yield from _settings()
    yield from _yaml()
    yield from _paths()
    yield from _special_files()
    yield from _images()
    yield from _meaning()
    yield from _tar_shards(random.Random(seed))
    yield from _weights(random.Random(seed + 1))
    yield from _annotations(random.Random(seed + 2))


# -- the commands


def _pretrain(here: Path, *words: str) -> Words:
    materials.photos(here / "photos")
    return ["pretrain", *materials.DINO, "--data", "photos", "--out", "out", *words]


def _evaluate(here: Path, *words: str) -> Words:
    materials.photos(here / "photos"), materials.weights(here / "w.safetensors")
    return ["evaluate", "w.safetensors", "--data", "photos", "--out", "out", *words]


def _embed(here: Path, data: str = "photos") -> Words:
    materials.photos(here / "photos"), materials.weights(here / "w.safetensors")
    return ["embed", "w.safetensors", "--data", data, "--out", "out.npz"]


def _segment(here: Path, *words: str) -> Words:
    materials.weights(here / "w.safetensors"), materials.examples(here / "examples")
    materials.frames(here / "frames")
    return ["segment", "w.safetensors", "--examples", "examples", "--images", "frames", "--out", "out", *words]


def _track(here: Path, *words: str) -> Words:
    materials.weights(here / "w.safetensors"), materials.frames(here / "frames"), materials.mask(here / "mask.png")
    return ["track", "w.safetensors", "--video", "frames", "--mask", "mask.png", "--out", "out", *words]


def _concepts(here: Path, *words: str) -> Words:
    materials.concept_weights(here / "c.safetensors"), materials.photos(here / "photos")
    return ["concepts", "c.safetensors", *(words or ("photos/red/000.png",)), "--out", "out"]


def _reconstruct(here: Path, *words: str) -> Words:
    return ["reconstruct", *_concepts(here, *words)[1:]]


# -- settings


def _words(text: str) -> Words:
    return text.split()


BAD_SETTINGS = _words(
    """
    trainer.batch_size=0 trainer.batch_size=-8 trainer.batch_size=1.5 trainer.batch_size=[4] trainer.batch_size=x
    trainer.steps=0 trainer.steps=-5 trainer.steps=1e30 trainer.steps=99999999999999999999 trainer.steps=[]
    trainer.seed=99999999999999999999999 trainer.seed=-1 trainer.seed=0.5 trainer.seed=2026-11-16 trainer.devices=0
    trainer.devices=-1 trainer.nodes=0 trainer.accumulate=0 trainer.accelerator=tpu trainer.precision=8
    trainer.strategy=x trainer=5 trainer=[] trainer.nothing=1 optim.lr=-1e-3 optim.lr=.nan optim.lr=.inf
    optim.lr=-.inf optim.lr=1e999 optim.lr=x optim.min_lr=-1 optim.betas=[0.9,1.0] optim.betas=[-1,0.5]
    optim.betas=[0.9] optim.betas=0.9 optim.betas=[.nan,0.9] optim.weight_decay=.nan optim.weight_decay=-1
    optim.weight_decay_end=.inf optim.warmup_epochs=.nan optim.warmup_epochs=.inf optim.warmup_epochs=-1
    optim.warmup_share=2 optim.clip=.nan optim.clip=-1 monitor.log_every=0 monitor.log_every=-1 monitor.knn.k=0
    monitor.knn.bank=0 monitor.knn.queries=0 monitor.knn.temperature=0 monitor.knn.every_epochs=0 monitor=5
    checkpoint.every_steps=0 checkpoint.keep_last=0 checkpoint.keep_every=0 checkpoint.every_minutes=.nan
    data.path=5 data.path=[] data.path=null data.workers=-1 data.prefetch=0 data.keep_mb=-1 data.max_bad_share=2
    data.mean=[0,0] data.std=[1,1,0] data.std=[1,1,.nan] data=5 data=[photos] method.name=[a] method.name=5
    method.name=null method=[] method={} method.out_dim=0 method.out_dim=-3 method.momentum=2 method.momentum=.nan
    method.teacher_temp=0 method.teacher_temp=.nan method.student_temp=-1 method.global_scale=[1,0.5]
    method.global_scale=[0,1] method.local_views=-1 method.local_views=999999999 method.global_size=99999999
    method.center_momentum=1 method.freeze_last_layer=-1 method.solarize=-0.1 backbone.depth=0
    backbone.depth=999999999 backbone.dim=0 backbone.dim=-16 backbone.dim=99999999999999999999 backbone.heads=0
    backbone.heads=3 backbone.patch_size=0 backbone.image_size=-16 backbone.image_size=17 backbone.mlp_ratio=0
    backbone.mlp_ratio=.nan backbone.drop_path=1 backbone.drop_path=-0.5 backbone.name=[x]
    backbone.name=no_such_model backbone.registers=-1 backbone.arguments={pretrained:true} backbone=7
    """
)
BAD_LENGTHS = ("0", "-1", ".nan", ".inf", "-.inf", "1e400", "[1]", "x")
BAD_EVALUATIONS = _words(
    """
    knn.k=0 knn.k=[] knn.k=-1 knn.k=x knn.temperature=0 knn.temperature=.nan knn.temperature=-1 knn.seed=-1
    knn.seed=99999999999999999999 knn.batch_size=0 knn.workers=-1 knn.holdout=0 knn.holdout=1 knn.holdout=.nan
    knn.label_share=0 knn.label_share=2 knn.label_list=nowhere.txt knn.resize=.inf knn.resize=0.5 knn=5
    knn.nothing=1
    """
)
BAD_SEGMENTING = _words(
    """
    k=0 k=-1 k=x k=[] temperature=0 temperature=-1 temperature=.nan temperature=.inf short_side=0 short_side=-5
    short_side=9999999 short_side=16000 multiple=0 nothing=1
    """
)
BAD_TRACKING = _words(
    """
    topk=0 topk=-1 radius=-1 context=-1 temperature=0 temperature=.nan short_side=0 short_side=9999999 multiple=-2
    first_mask=x nothing=1
    """
)


def _settings() -> Iterator[Case]:
    cause = "settings"
    for text in BAD_SETTINGS:
        yield Case(f"pretrain {text}", cause, partial(_with_words, _pretrain, (text,)))
    for length in BAD_LENGTHS:
        for name in ("epochs", "minutes"):
            words = ("trainer.steps=null", f"trainer.{name}={length}")
            yield Case(f"pretrain trainer.{name}={length}", cause, partial(_with_words, _pretrain, words))
    for command, texts in ((_evaluate, BAD_EVALUATIONS), (_segment, BAD_SEGMENTING), (_track, BAD_TRACKING)):
        for text in texts:
            yield Case(f"{command.__name__[1:]} {text}", cause, partial(_with_words, command, (text,)))
    for text in ("=1", "trainer.steps", "trainer..steps=3", ".=1", "a.b.c.d.e=1", ".".join("x" * 999) + "=1"):
        yield Case(f"pretrain override {text[:30]}", cause, partial(_with_words, _pretrain, (text,)))


def _with_words(command: Callable[..., Words], words: Sequence[str], here: Path) -> Words:
    return command(here, *words)


# -- YAML

_RECIPE = "method: dino\ndata: {path: photos}\n"
YAMLS = {
    "empty": "",
    "list": "- method: dino\n",
    "text": "dino",
    "duplicate key": _RECIPE + "optim:\n  lr: 1e-3\n  lr: 1e-4\n",
    "duplicate section": _RECIPE + "data: {path: other}\n",
    "duplicate in flow": "method: {name: dino, name: mae}\ndata: {path: photos}\n",
    "date": _RECIPE + "trainer: {seed: 2026-11-16}\n",
    "time": _RECIPE + "trainer: {seed: 2026-11-16 10:00:00}\n",
    "big int": _RECIPE + f"trainer: {{seed: {'9' * 5000}}}\n",
    "big hex": _RECIPE + f"trainer: {{seed: 0x{'f' * 9000}}}\n",
    "deep flow": "a: " + "[" * 20_000,
    "deep flow mapping": "{a: " * 20_000,
    "deep block": "".join(f"{' ' * level}a:\n" for level in range(900)),
    "deep dashes": "- " * 5000,
    "aliases": "a: &a [x, x, x, x, x, x, x, x, x]\n"
    + "".join(f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(9)),
    "circle": "a: &a [*a]\n",
    "unknown alias": "a: *b\n",
    "python tag": "a: !!python/object/apply:os.system ['touch pwned']\n",
    "bool tag": "a: !!bool maybe\n",
    "timestamp tag": "a: !!timestamp soon\n",
    "binary": "a: !!binary x\n",
    "tab": "method:\n\tname: dino\n",
    "NUL": "method: dino\0\n",
    "not UTF-8": b"method: \xff\xfe\n",
    "UTF-16": "method: dino\n".encode("utf-16"),
    "two documents": _RECIPE + "---\n" + _RECIPE,
    "number as key": _RECIPE + "5: 6\n",
    "null as key": _RECIPE + "null: 6\n",
    "list as key": _RECIPE + "? [a]\n: 6\n",
    "null sections": "method: dino\ndata: null\n",
    "on_cpu list": _RECIPE + "on_cpu: [1]\n",
    "on_cpu trainer": _RECIPE + "on_cpu: {trainer: [1]}\n",
    "method list": "method: [dino]\ndata: {path: photos}\n",
    "method number": "method: 5\ndata: {path: photos}\n",
    "name list": "method: {name: [dino]}\ndata: {path: photos}\n",
    "path with NUL": 'method: dino\ndata: {path: "photos\\0"}\n',
    "unclosed": "method: [dino\n",
}
STUDIES = {
    "runs list": "runs: [dino]\n",
    "run number": "runs: {a: 5}\n",
    "seeds": "seeds: [99999999999999999999]\nruns: {a: {model: pixels}}\n",
    "steps nan": "steps: .nan\nruns: {a: {recipe: dino-scenes}}\n",
    "steps zero": "steps: 0\nruns: {a: {recipe: dino-scenes}}\n",
    "gpu_hours inf": "gpu_hours: .inf\nruns: {a: {recipe: dino-scenes}}\n",
    "name is a path": "runs: {../../a: {model: pixels}}\n",
    "settings": "settings: [optim.lr=-1]\nsteps: 2\nruns: {a: {recipe: dino-scenes}}\n",
    "evaluations": "runs: {a: {model: pixels}}\nevaluations: [{protocols: knn}]\n",
}


def _yaml() -> Iterator[Case]:
    for name, content in YAMLS.items():
        yield Case(name, "YAML", partial(_recipe_file, content, "recipe.yaml"))
    for name, content in STUDIES.items():
        yield Case(f"study {name}", "YAML", partial(_study_file, content))


def _recipe_file(content: str | bytes, name: str, here: Path) -> Words:
    materials.photos(here / "photos")
    (here / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return ["pretrain", name, "--out", "out", "trainer.steps=1", "trainer.batch_size=2", "data.workers=0"]


def _study_file(content: str, here: Path) -> Words:
    (here / "study.yaml").write_text(content)
    return ["compare", "study.yaml", "--out", "out", "--jobs", "1"]


# -- paths


def _paths() -> Iterator[Case]:
    cause = "paths"
    long, nobody = "n" * 300, "~nosuchuser/photos"
    for name, path in {"unknown user": nobody, "long name": long, "missing": "nowhere", "below a file": "f/x"}.items():
        for command in (_pretrain, _evaluate, _embed):
            yield Case(f"{command.__name__[1:]} --data {name}", cause, partial(_replaced, command, "photos", path))
        for option, command in (("examples", _segment), ("frames", _segment), ("frames", _track), ("mask.png", _track)):
            yield Case(f"{command.__name__[1:]} {option} {name}", cause, partial(_replaced, command, option, path))
        for command in (_evaluate, _embed, _segment):
            yield Case(
                f"{command.__name__[1:]} model {name}", cause, partial(_replaced, command, "w.safetensors", path)
            )
        for command in (_concepts, _reconstruct):
            picture = "photos/red/000.png"
            yield Case(f"{command.__name__[1:]} image {name}", cause, partial(_replaced, command, picture, path))
        yield Case(f"recipe {name}", cause, partial(_replaced, _pretrain, "dino", f"{path}.yaml"))
        yield Case(f"--init {name}", cause, partial(_with_words, _pretrain, ("--init", path)))
        yield Case(f"--resume {name}", cause, lambda here, path=path: ["pretrain", "--resume", path])  # type: ignore[misc]
        yield Case(f"report {name}", cause, lambda here, path=path: ["report", path])  # type: ignore[misc]
    for command, word in ((_segment, "w.safetensors"), (_track, "mask.png"), (_concepts, "photos/red/000.png")):
        yield Case(f"{command.__name__[1:]} folder for {word}", cause, partial(_replaced, command, word, "folder"))
    yield Case("folder for a recipe", cause, _folder_as_recipe)
    for name in ("[red]photos", "pho[/]tos", "photos :cat:", "-photos", "photos\n2", "phötos ☃", "pho'to\"s;&|"):
        yield Case(f"data in {name!r}", cause, partial(_odd_name, name), exits=_SKIPPED)
    yield Case(
        "data in bytes that are no text", cause, partial(_odd_name, os.fsdecode(b"ph\xff\xfetos")), exits=_EITHER
    )


def _replaced(command: Callable[..., Words], old: str, new: str, here: Path) -> Words:
    words = command(here)
    (here / "f").write_text("a file")
    (here / "folder").mkdir()
    assert old in words
    return [new if word == old else word for word in words]


def _folder_as_recipe(here: Path) -> Words:
    (here / "recipe.yaml").mkdir()
    return ["pretrain", "recipe.yaml", "--out", "out"]


def _odd_name(name: str, here: Path) -> Words:
    words = _embed(here)
    (here / name).parent.mkdir(exist_ok=True)
    (here / "photos").rename(here / name)
    return [f"./{name}" if word == "photos" else word for word in words]


# -- special files


def _pipe(file: Path) -> None:
    file.unlink(missing_ok=True)
    os.mkfifo(file)


def _endless(file: Path) -> None:
    file.unlink(missing_ok=True)
    file.symlink_to("/dev/zero")


def _loop(file: Path) -> None:
    file.unlink(missing_ok=True)
    file.symlink_to(file.name)


def _broken_link(file: Path) -> None:
    file.unlink(missing_ok=True)
    file.symlink_to("nowhere")


def _huge(file: Path) -> None:
    file.unlink(missing_ok=True)
    with file.open("wb") as content:
        content.write(b"\x89PNG\r\n\x1a\n")
        content.truncate(20 << 30)


def _folder(file: Path) -> None:
    file.unlink(missing_ok=True)
    file.mkdir()


KINDS: dict[str, Fill] = {
    "pipe": _pipe,
    "endless device": _endless,
    "loop of links": _loop,
    "broken link": _broken_link,
    "20 GB": _huge,
    "folder": _folder,
}


_TOLERANT = {"pretrain": ("data.max_bad_share=0.5",), "evaluate": ("knn.k=1",)}


def _special_files() -> Iterator[Case]:
    cause = "special files"
    for kind, make in KINDS.items():
        inside = {"pretrain": _pretrain, "embed": _embed, "evaluate": _evaluate}
        for name, command in inside.items():
            words = (
                ("data.max_bad_share=0.5",) if command is _pretrain else ("knn.k=1",) if command is _evaluate else ()
            )
            prepare = partial(_with_file, command, words, make, "photos/red/x.png")
            yield Case(f"{name}: {kind} among photos", cause, prepare, exits=_EITHER)
        yield Case(
            f"segment: {kind} among images",
            cause,
            partial(_with_file, _segment, (), make, "frames/x.jpg"),
            exits=_EITHER,
        )
        for name, command, file in (
            ("segment mask", _segment, "examples/00000.png"),
            ("segment example", _segment, "examples/00000.jpg"),
            ("track frame", _track, "frames/00001.jpg"),
            ("track mask", _track, "mask.png"),
            ("concepts image", _concepts, "photos/red/000.png"),
            ("reconstruct image", _reconstruct, "photos/red/000.png"),
            ("weights", _embed, "w.safetensors"),
            ("concepts file", _concepts, "c.concepts.safetensors"),
        ):
            exits = _EITHER if name == "concepts file" else (2,)
            yield Case(f"{name}: {kind}", cause, partial(_with_file, command, (), make, file), exits=exits)
        yield Case(f"recipe: {kind}", cause, partial(_special_recipe, make))
        yield Case(f"tar: {kind}", cause, partial(_special_tar, make))


def _with_file(command: Callable[..., Words], words: Sequence[str], make: Fill, file: str, here: Path) -> Words:
    found = command(here, *words)
    make(here / file)
    return found


def _special_recipe(make: Fill, here: Path) -> Words:
    make(here / "recipe.yaml")
    return ["pretrain", "recipe.yaml", "--out", "out"]


def _special_tar(make: Fill, here: Path) -> Words:
    materials.weights(here / "w.safetensors")
    (here / "shards").mkdir()
    make(here / "shards" / "a.tar")
    return ["embed", "w.safetensors", "--data", "shards", "--out", "out.npz"]


# -- images


def png(width: int, height: int, content: bytes = b"") -> bytes:
    """A PNG of this declared size; without content, its pixels are missing."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(content)) + chunk(b"IEND", b"")


def blank(width: int, height: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("L", (width, height), 90).save(buffer, "PNG")
    return buffer.getvalue()


POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 32 24\n(pwned) (w) file closefile\nshowpage\n%%EOF\n"
IMAGES: dict[str, Callable[[], bytes]] = {
    "empty": lambda: b"",
    "one byte": lambda: b"\x89",
    "text": lambda: b"no image",
    "PostScript": lambda: POSTSCRIPT,
    "SVG": lambda: b"<svg xmlns='http://www.w3.org/2000/svg'/>",
    "PNG without pixels": lambda: png(32, 24),
    "bomb of 4 gigapixels": lambda: png(65_000, 65_000, bytes(9)),
    "sides of 2^31": lambda: png(2**31 - 1, 2**31 - 1),
    "1 × 5000": lambda: blank(1, 5000),
    "8 × 50000": lambda: blank(8, 50_000),
    "5000 × 1": lambda: blank(5000, 1),
    "16 × 1600": lambda: blank(16, 1600),
    "13000 × 13000": lambda: blank(13_000, 13_000),
    "truncated JPEG": lambda: b"\xff\xd8\xff\xe0\0\x10JFIF",
    "JPEG of zero size": lambda: b"\xff\xd8\xff\xc0\0\x0b\x08\0\0\0\0\x01\x01\x11\0\xff\xd9",
}


def _images() -> Iterator[Case]:
    for name, make in IMAGES.items():
        large = name == "13000 × 13000"
        limits: dict[str, Any] = {"seconds": 900, "megabytes": 4000} if large else {}
        allowed = large or name == "16 × 1600"
        for command, file, tolerable in (
            (_embed, "photos/red/x.png", True),
            (_pretrain, "photos/red/x.png", True),
            (_segment, "frames/x.png", True),
            (_track, "mask.png", False),
            (_concepts, "photos/red/000.png", allowed),
            (_reconstruct, "photos/red/000.png", allowed),
        ):
            own = command.__name__[1:]
            prepare = partial(_with_file, command, _TOLERANT.get(own, ()), partial(_write, make), file)
            exits = _EITHER if tolerable else (2,)
            kind = "extreme shapes" if "×" in name else "images"
            yield Case(f"{own}: {name}", kind, prepare, exits, slow=large, **limits)

    yield Case(
        "segment: 24 megapixels with 20 classes",
        "extreme shapes",
        _many_classes,
        (0,),
        seconds=600,
        megabytes=2000,
        slow=True,
    )


def _many_classes(here: Path) -> Words:
    words = _segment(here)
    values = np.arange(20, dtype=np.uint8).repeat(4)[None].repeat(24, axis=0)
    Image.fromarray(values).save(here / "examples/00000.png")
    Image.fromarray(np.stack([values * 12] * 3, axis=-1)).save(here / "examples/00000.jpg")
    (here / "frames/x.png").write_bytes(blank(6000, 4000))
    return words


def _write(make: Callable[[], bytes], file: Path) -> None:
    file.write_bytes(make())


# -- inputs that would be read as something else


def _meaning() -> Iterator[Case]:
    cause = "wrong meaning"
    yield Case("segment: two images of one stem", cause, _one_stem, exits=_SKIPPED, check=_both_masks)
    yield Case("segment: two examples of one mask", cause, _two_examples)
    yield Case("track: float mask", cause, partial(_with_file, _track, (), _float_mask, "mask.png"))
    yield Case("segment: float mask", cause, partial(_with_file, _segment, (), _float_mask, "examples/00000.png"))
    yield Case("concepts on a model without concepts", cause, partial(_no_concepts, False))
    yield Case("concepts file of another model", cause, partial(_no_concepts, True))


def _one_stem(here: Path) -> Words:
    words = _segment(here)
    Image.open(here / "frames/00000.jpg").save(here / "frames/00000.png")
    return words


def _both_masks(here: Path, ended: object) -> str | None:
    found = sorted(path.name for path in (here / "out/masks").iterdir())
    return None if len(found) == 3 else f"3 images, but the masks {found}"


def _two_examples(here: Path) -> Words:
    words = _segment(here)
    Image.open(here / "examples/00000.jpg").save(here / "examples/00000.webp")
    return words


def _float_mask(file: Path) -> None:
    with Image.open(file) as image:
        values = np.asarray(image).astype(np.float32) / 7
    Image.fromarray(values).save(file, "TIFF")


def _no_concepts(planted: bool, here: Path) -> Words:
    words = _concepts(here)
    materials.weights(here / "plain.safetensors")
    if planted:
        (here / "c.concepts.safetensors").rename(here / "plain.concepts.safetensors")
    return ["plain.safetensors" if word == "c.safetensors" else word for word in words]


# -- tar shards


def shard() -> bytes:
    """Four images with their classes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for number in range(4):
            for name, content in ((f"{number:04}.png", blank(16, 16)), (f"{number:04}.cls", str(number % 2).encode())):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def resealed(content: bytes, at: int, field: bytes) -> bytes:
    """A tar file with a changed field in its first header, whose checksum is right."""
    header = bytearray(content[:512])
    header[at : at + len(field)] = field
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + content[512:]


def with_class(text: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in (("a.png", blank(16, 16)), ("a.cls", text)):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def pax(records: bytes) -> bytes:
    """A tar file whose first member is preceded by these pax records."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        member = tarfile.TarInfo("pax")
        member.type, member.size = b"x", len(records)
        archive.addfile(member, io.BytesIO(records))
    head = buffer.getvalue()[: 512 + (len(records) + 511) // 512 * 512]
    return head + shard()


TARS: dict[str, Callable[[], bytes]] = {
    "empty": lambda: b"",
    "one byte": lambda: b"x",
    "zeros": lambda: bytes(2048),
    "short header": lambda: shard()[:100],
    "half a header": lambda: shard()[:700],
    "cut off": lambda: shard()[:-3000],
    "no archive": lambda: b"PK\x03\x04" * 300,
    "size -1000": lambda: resealed(shard(), 124, b"-0000001000\0"),
    "size +1": lambda: resealed(shard(), 124, b"+0000000001\0"),
    "size 1_0": lambda: resealed(shard(), 124, b"00000001_00\0"),
    "size x": lambda: resealed(shard(), 124, b"xxxxxxxxxxx\0"),
    "size huge": lambda: resealed(shard(), 124, b"77777777777\0"),
    "size base 256": lambda: resealed(shard(), 124, b"\x80" + b"\xff" * 11),
    "size base 256 negative": lambda: resealed(shard(), 124, b"\xff" * 12),
    "sparse": lambda: resealed(shard(), 156, b"S"),
    "wrong checksum": lambda: shard()[:148] + b"0000000\0" + shard()[156:],
    "long name of 8 GB": lambda: resealed(resealed(shard(), 156, b"L"), 124, b"77777777777\0"),
    "class 99999999999": lambda: with_class(b"99999999999"),
    "class of 40 digits": lambda: with_class(b"9" * 40),
    "class 2^63": lambda: with_class(str(2**63).encode()),
    "pax size -1": lambda: pax(b"11 size=-1\n"),
    "pax size x": lambda: pax(b"10 size=x\n"),
    "pax size of 400 digits": lambda: pax(b"410 size=" + b"9" * 400 + b"\n"),
    "pax length 0": lambda: pax(b"0 size=1\n"),
    "pax length 999": lambda: pax(b"999 path=a\n"),
    "pax length x": lambda: pax(b"x path=a\n"),
    "pax sparse": lambda: pax(b"22 GNU.sparse.major=1\n"),
    "path with NUL": lambda: pax(b"15 path=a\0b.png\n"),
}


def _tar_shards(choice: random.Random) -> Iterator[Case]:
    cause = "tar shards"
    tolerable = {"path with NUL", "zeros"}
    for name, make in TARS.items():
        exits = _EITHER if name in tolerable else (2,)
        yield Case(f"embed {name}", cause, partial(_tar, make, "embed"), exits)
    for name in ("size -1000", "class 99999999999", "sparse", "cut off"):
        yield Case(f"pretrain {name}", cause, partial(_tar, TARS[name], "pretrain"))
        yield Case(f"evaluate {name}", cause, partial(_tar, TARS[name], "evaluate"))
    yield Case("nothing is written next to the data", cause, partial(_tar, shard, "embed"), _SKIPPED)
    for number in range(40):
        damage = partial(_damaged_tar, choice.randrange(2**32))
        yield Case(f"embed damage {number}", cause, partial(_tar, damage, "embed"), _EITHER, slow=number > 5)


def _tar(make: Callable[[], bytes], command: str, here: Path) -> Words:
    materials.weights(here / "w.safetensors")
    (here / "shards").mkdir()
    file = here / "shards/a.tar"
    file.write_bytes(make())
    os.utime(file, (1e9, 1e9))  # old enough for its index to be stored
    if command == "pretrain":
        return ["pretrain", *materials.DINO, "--data", "shards", "--out", "out"]
    return [command, "w.safetensors", "--data", "shards", "--out", "out.npz" if command == "embed" else "out"]


def _damaged_tar(seed: int) -> bytes:
    """Some bytes changed, mostly in headers."""
    choice, content = random.Random(seed), bytearray(shard())
    for _ in range(choice.randint(1, 8)):
        header = 512 * choice.randrange(len(content) // 512)
        place = header + choice.choice([0, 100, 124, 136, 148, 156, 257, 345]) + choice.randrange(8)
        content[place] = choice.randrange(256)
    return bytes(content[: choice.choice([None, choice.randrange(len(content))])])


# -- weights


_NO_WEIGHTS = {"empty": b"", "text": b"x" * 99, "zip": b"PK\x03\x04" * 9, "pickle": b"\x80\x04N."}


def _weights(choice: random.Random) -> Iterator[Case]:
    cause = "weights"
    changes: dict[str, object] = {
        "architecture.arguments.pretrained": True,
        "architecture.arguments.pretrained_cfg_overlay": {"url": "http://127.0.0.1:9/w"},
        "architecture.arguments.checkpoint_path": "/etc/passwd",
        "architecture.arguments.embed_dim": 10**6,
        "architecture.arguments.depth": 10**6,
        "architecture.name": "hf-hub:someone/vit",
        "architecture.arguments": [],
        "architecture": None,
        "mean": [0, 0],
        "mean.1": float("nan"),
        "std": [1, 1, 0],
        "image_size": 10**9,
        "image_size.2": -16,
        "step": "many",
    }
    for place, value in changes.items():
        yield Case(f"metadata {place}", cause, partial(_changed_metadata, place, value))
    for name, text in {"no JSON": "x", "deep": "[" * 50_000, "list": "[]", "empty": ""}.items():
        yield Case(f"metadata {name}", cause, partial(_changed_metadata, "", text))
    for length in (0, 7, 10**6, 2**40, 2**63 - 1, 2**64 - 1):
        yield Case(f"header of {length} bytes", cause, partial(_header, length))
    for suffix in ("pth", "bin", "ckpt", "safetensors"):
        for name, content in {
            "empty": b"",
            "text": b"x" * 99,
            "zip": b"PK\x03\x04" * 9,
            "pickle": b"\x80\x04N.",
        }.items():
            yield Case(f"{name}.{suffix}", cause, partial(_weights_file, f"w.{suffix}", content))
    for number in range(20):
        damage = partial(_damaged_weights, choice.randrange(2**32))
        yield Case(f"damage {number}", cause, damage, _EITHER, slow=number > 3)


def _changed_metadata(place: str, value: object, here: Path) -> Words:
    words = _embed(here)
    file = here / "w.safetensors"
    with safe_open(file, framework="pt") as content:
        values = json.loads(content.metadata()["asterism"])
    tensors = load_file(file)
    node, parts = values, [part for part in place.split(".") if not part.isdigit()]
    for part in parts[:-1]:
        node = node[part]
    if place.endswith(".1"):
        node[parts[-1]][1] = value
    elif parts and place:
        node[parts[-1]] = value
    save_file(tensors, file, {"asterism": str(value) if not place else json.dumps(values)})
    return words


def _header(length: int, here: Path) -> Words:
    return _weights_file("w.safetensors", struct.pack("<Q", length) + b"{}", here)


def _weights_file(name: str, content: bytes, here: Path) -> Words:
    materials.photos(here / "photos")
    (here / name).write_bytes(content)
    return ["embed", name, "--data", "photos", "--out", "out.npz"]


def _damaged_weights(seed: int, here: Path) -> Words:
    words, choice, file = _embed(here), random.Random(seed), here / "w.safetensors"
    content = bytearray(file.read_bytes())
    header = 8 + int.from_bytes(content[:8], "little")
    for _ in range(choice.randint(1, 5)):
        content[choice.randrange(header)] = choice.randrange(256)
    file.write_bytes(content)
    return words


# -- annotations

_OBJECT = {"id": 1, "image_id": 1, "category_id": 1, "area": 9, "iscrowd": 0, "segmentation": [[1, 1, 9, 1, 9, 9]]}
_COCO = {
    "images": [{"id": 1, "file_name": "a.png", "height": 24, "width": 32}],
    "categories": [{"id": 1, "name": "thing"}],
    "annotations": [_OBJECT],
}


def _outlined(segmentation: object) -> dict[str, object]:
    return {**_COCO, "annotations": [{**_OBJECT, "segmentation": segmentation}]}


COCOS: dict[str, object] = {
    "list": [],
    "number": 5,
    "no images": {"annotations": [], "categories": []},
    "images number": {**_COCO, "images": 5},
    "images of text": {**_COCO, "images": ["a.png"]},
    "category without name": {**_COCO, "categories": [{"id": 1}]},
    "unknown category": {**_COCO, "categories": [{"id": 2, "name": "x"}]},
    "size text": {**_COCO, "images": [{"id": 1, "file_name": "a.png", "height": "x", "width": 32}]},
    "size huge": {**_COCO, "images": [{"id": 1, "file_name": "a.png", "height": 10**7, "width": 10**7}]},
    "size negative": {**_COCO, "images": [{"id": 1, "file_name": "a.png", "height": -5, "width": 32}]},
    "runs huge": {
        **_COCO,
        "annotations": [{**_COCO["annotations"][0], "segmentation": {"size": [24, 32], "counts": [10**12]}}],
    },  # type: ignore[index]
    "runs negative": {
        **_COCO,
        "annotations": [{**_COCO["annotations"][0], "segmentation": {"size": [24, 32], "counts": [-5, 773]}}],
    },  # type: ignore[index]
    "runs text": {
        **_COCO,
        "annotations": [{**_COCO["annotations"][0], "segmentation": {"size": [24, 32], "counts": ["x"]}}],
    },  # type: ignore[index]
    "polygon text": _outlined([["x"] * 6]),
    "polygon nan": _outlined([[float("nan")] * 6]),
    "no area": {**_COCO, "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "segmentation": []}]},
}
BOXES = {
    "no JSON": "x",
    "list": "[]",
    "number": '{"red/000.png": 5}',
    "nan": '{"red/000.png": [0, 0, NaN, 5]}',
    "text": '{"red/000.png": "box"}',
    "deep": "[" * 50_000,
    "upside down": '{"red/000.png": [9, 9, 1, 1]}',
}


def _annotations(choice: random.Random) -> Iterator[Case]:
    cause = "annotations"
    for name, content in COCOS.items():
        yield Case(f"COCO {name}", cause, partial(_coco, json.dumps(content)))
    for name, text in {"no JSON": "x", "deep": "[" * 50_000, "empty": "", "cut off": json.dumps(_COCO)[:60]}.items():
        yield Case(f"COCO {name}", cause, partial(_coco, text))
    for name, text in BOXES.items():
        yield Case(f"boxes {name}", cause, partial(_boxes, text))
    for number in range(10):
        place = choice.random()
        text = json.dumps(_COCO)
        cut = text[: int(place * len(text))] + text[int(place * len(text)) + 1 :]
        yield Case(f"COCO without byte {number}", cause, partial(_coco, cut), _EITHER, slow=number > 2)


def _coco(text: str, here: Path) -> Words:
    materials.weights(here / "w.safetensors")
    data = here / "coco"
    (data / "annotations").mkdir(parents=True), (data / "images").mkdir()
    (data / "annotations/instances_train.json").write_text(text)
    (data / "annotations/instances_val.json").write_text(text)
    Image.new("RGB", (32, 24)).save(data / "images/a.png")
    return ["evaluate", "w.safetensors", "--data", "coco", "-p", "dense-nn", "--out", "out", "dense-nn.k=1"]


def _boxes(text: str, here: Path) -> Words:
    words = _evaluate(here, "-p", "bbox-knn", "bbox-knn.k=1")
    (here / "photos/boxes.json").write_text(text)
    return words
