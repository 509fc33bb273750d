"""Everything that comes in: special files, images, YAML, paths, tar shards, weights, annotations, captions, runs.

Each case gives one bad input to one command. Some are tolerable: a pipe among photographs is skipped and recorded.
"""

import json
import os
import random
import struct
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from asterism.images.masks import read_mask
from tests.campaigns.attacks import no_network
from tests.campaigns.campaign import Case
from tests.campaigns.faults import CONTENTS, IMAGES, KINDS, TARS, Change, blank, both, put, remove, shard, tar
from tests.campaigns.materials import ALIGNING, CAPTIONS, DINO, FINETUNING, line, on, prepared
from tests.campaigns.processes import Ended

_EITHER = (0, 2)
_KEPT = ("out", "out/*")  # what a command may leave that ends in the middle: the list of bad images that it names
_TOLERANT = "data.max_bad_share=0.5"
_RECIPE = "pretrain recipe.yaml --out out trainer.steps=1 trainer.batch_size=2 data.workers=0"

# A command, a file that it reads among others, and the first file of its kind, which it needs.
_AMONG = {
    "pretrain": ([_TOLERANT], "photos/red/x.png"),
    "finetune": ([_TOLERANT], "labelled/red/x.png"),
    "align": ([_TOLERANT], "captions/red0.png"),
    "evaluate": (["knn.k=1"], "photos/red/x.png"),
    "embed npz": ([], "photos/red/x.png"),
    "predict": ([], "labelled/red/x.png"),
    "segment": ([], "frames/x.png"),
}
_NEEDED: dict[str, tuple[list[str] | str, str]] = {
    "segment mask": (line("segment"), "examples/00000.png"),
    "segment example": (line("segment"), "examples/00000.jpg"),
    "track frame": (line("track"), "frames/00001.jpg"),
    "track mask": (line("track"), "mask.png"),
    "concepts image": (line("concepts"), "photos/red/000.png"),
    "reconstruct image": (line("reconstruct"), "photos/red/000.png"),
    "predict image": ("predict finetuned --images x.png --out out", "x.png"),
    "predict video": ("predict finetuned --images x.mp4 --out out", "x.mp4"),
    "predict model": (line("predict"), "finetuned/model.safetensors"),
    "embed weights": (line("embed npz"), "w.safetensors"),
    "finetune weights": (line("finetune"), "w.safetensors"),
    "align weights": (line("align"), "w.safetensors"),
    "distill teacher": (line("distill"), "w.safetensors"),
    "export weights": ("export w.safetensors --to timm --out out", "w.safetensors"),
    "explore weights": ("explore w.safetensors --data photos --no-browser", "w.safetensors"),
    "explore index": ("explore w.safetensors --index index.npz --no-browser", "index.npz"),
    "explore run": ("explore pretrained --data photos --no-browser", "pretrained/encoder.safetensors"),
    "recipe": ("pretrain recipe.yaml --out out", "recipe.yaml"),
    "recipe to profile": ("profile recipe.yaml --data photos", "recipe.yaml"),
    "recipe of fine-tuning": ("finetune w.safetensors --recipe r.yaml --data labelled --out out", "r.yaml"),
    "study": (line("compare"), "study.yaml"),
    "list of labels": (line("finetune", "data.label_list=list.txt"), "list.txt"),
    "captions": (line("align"), CAPTIONS),
    "text model": (line("align", "--text", "text"), "text"),
    "tar": ("embed w.safetensors --data shards --out out.npz", "shards/a.tar"),
}
_IMAGES_NEEDED = ("track mask", "concepts image", "reconstruct image")


def cases(seed: int) -> Iterator[Case]:
    yield from _special_files()
    yield from _images()
    yield from _yaml()
    yield from _paths()
    yield from _meaning()
    yield from _labelled()
    yield from _tar_shards(random.Random(seed))
    yield from _weights(random.Random(seed + 1))
    yield from _annotations(random.Random(seed + 2))
    yield from _captions(random.Random(seed + 3))


# -- special files


def _special_files() -> Iterator[Case]:
    for kind, make in KINDS.items():
        for name, (more, file) in _AMONG.items():
            yield on(
                f"{name}: {kind} among images", "special files among images", line(name, *more), put(file, make),
                exits=_EITHER, kept=_KEPT, inside=no_network if name == "align" else None,
            )  # fmt: skip
        for name, (words, file) in _NEEDED.items():
            inside = no_network if name in ("text model", "captions") else None
            yield on(f"{name}: {kind}", "special files", words, put(file, make), kept=_KEPT, inside=inside, seconds=60)
        yield on(
            f"concepts file: {kind}", "special files", line("concepts"), put("c.concepts.safetensors", make),
            exits=_EITHER,
        )  # fmt: skip
        profile = f"profile {DINO} --data photos --steps 1 {_TOLERANT}"
        yield on(
            f"profile: {kind}", "special files among images", profile, put("photos/red/x.png", make), exits=_EITHER
        )
    for name, content in CONTENTS.items():
        for file in ("distill teacher", "explore index", "explore run"):
            yield on(f"{file} {name}", "wrong content", _NEEDED[file][0], put(_NEEDED[file][1], content), seconds=60)
    gone = remove("photos")
    yield on("images of the index gone", "wrong content", _NEEDED["explore index"][0], gone, seconds=60)


# -- images


def _images() -> Iterator[Case]:
    for name, make in IMAGES.items():
        large = name == "13000 × 13000"
        limits: dict[str, Any] = {"seconds": 900, "megabytes": 4000, "slow": True} if large else {}
        cause = "extreme shapes" if "×" in name else "images"
        for command, (more, file) in _AMONG.items():
            change = put(file, lambda path, make=make: path.write_bytes(make()))
            yield on(f"{command}: {name}", cause, line(command, *more), change, exits=_EITHER, kept=_KEPT, **limits)
        for needed in _IMAGES_NEEDED:
            words, file = _NEEDED[needed]
            exits = _EITHER if (large or name == "16 × 1600") and needed != "track mask" else (2,)
            change = put(file, lambda path, make=make: path.write_bytes(make()))
            yield on(f"{needed}: {name}", cause, words, change, exits=exits, **limits)
        change = put("x.png", lambda path, make=make: path.write_bytes(make()))
        yield on(f"predict {name} alone", cause, _NEEDED["predict image"][0], change, exits=_EITHER, **limits)
    yield on(
        "segment: 24 megapixels with 20 classes", "extreme shapes", line("segment"), _many_classes,
        exits=(0,), seconds=600, megabytes=2000, slow=True,
    )  # fmt: skip


def _many_classes(here: Path) -> None:
    values = np.arange(20, dtype=np.uint8).repeat(4)[None].repeat(24, axis=0)
    Image.fromarray(values).save(here / "examples/00000.png")
    Image.fromarray(np.stack([values * 12] * 3, axis=-1)).save(here / "examples/00000.jpg")
    (here / "frames/x.png").write_bytes(blank(6000, 4000))


# -- YAML

_START = "method: dino\ndata: {path: photos}\n"
_ALIASES = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(9)
)
_YAMLS: dict[str, str | bytes] = {
    "empty": "",
    "list": "- method: dino\n",
    "text": "dino",
    "duplicate key": _START + "optim:\n  lr: 1e-3\n  lr: 1e-4\n",
    "duplicate section": _START + "data: {path: other}\n",
    "duplicate in flow": "method: {name: dino, name: mae}\ndata: {path: photos}\n",
    "date": _START + "trainer: {seed: 2026-11-16}\n",
    "time": _START + "trainer: {seed: 2026-11-16 10:00:00}\n",
    "big int": _START + f"trainer: {{seed: {'9' * 5000}}}\n",
    "big hex": _START + f"trainer: {{seed: 0x{'f' * 9000}}}\n",
    "deep flow": "a: " + "[" * 20_000,
    "deep flow mapping": "{a: " * 20_000,
    "deep block": "".join(f"{' ' * level}a:\n" for level in range(900)),
    "deep dashes": "- " * 5000,
    "aliases": _ALIASES,
    "circle": "a: &a [*a]\n",
    "unknown alias": "a: *b\n",
    "bool tag": "a: !!bool maybe\n",
    "timestamp tag": "a: !!timestamp soon\n",
    "binary": "a: !!binary x\n",
    "tab": "method:\n\tname: dino\n",
    "NUL": "method: dino\0\n",
    "not UTF-8": b"method: \xff\xfe\n",
    "UTF-16": "method: dino\n".encode("utf-16"),
    "two documents": _START + "---\n" + _START,
    "number as key": _START + "5: 6\n",
    "null as key": _START + "null: 6\n",
    "list as key": _START + "? [a]\n: 6\n",
    "null sections": "method: dino\ndata: null\n",
    "on_cpu list": _START + "on_cpu: [1]\n",
    "on_cpu trainer": _START + "on_cpu: {trainer: [1]}\n",
    "method list": "method: [dino]\ndata: {path: photos}\n",
    "method number": "method: 5\ndata: {path: photos}\n",
    "name list": "method: {name: [dino]}\ndata: {path: photos}\n",
    "path with NUL": 'method: dino\ndata: {path: "photos\\0"}\n',
    "unclosed": "method: [dino\n",
}
_STUDIES = {
    "runs list": "runs: [dino]",
    "run number": "runs: {a: 5}",
    "seeds": "seeds: [99999999999999999999]\nruns: {a: {model: pixels}}",
    "steps nan": "steps: .nan\nruns: {a: {recipe: dino-scenes}}",
    "steps zero": "steps: 0\nruns: {a: {recipe: dino-scenes}}",
    "gpu_hours inf": "gpu_hours: .inf\nruns: {a: {recipe: dino-scenes}}",
    "settings": "settings: [optim.lr=-1]\nsteps: 2\nruns: {a: {recipe: dino-scenes}}",
    "evaluations": "runs: {a: {model: pixels}}\nevaluations: [{protocols: knn}]",
    "unknown protocol": "runs: {a: {model: pixels}}\nevaluations: [{data: photos, protocols: [x]}]",
    "a model that is an image": "runs: {a: {model: photos/red/000.png}}",
    "model and recipe": "runs: {a: {model: pixels, recipe: dino}}",
    "neither": "runs: {a: {}}",
    "a run that is a list": "runs: {a: [1]}",
    "a name that is a path": "runs: {../../a: {model: pixels}}",
    "a name with NUL": 'runs: {"a\\0": {model: pixels}}',
    "a name too long": f"runs: {{{'n' * 300}: {{model: pixels}}}}",
}


def _yaml() -> Iterator[Case]:
    for name, content in _YAMLS.items():
        yield on(name, "YAML", _RECIPE, both(_with_photos, put("recipe.yaml", content)))
    for name in ("duplicate key", "deep flow", "aliases", "not UTF-8"):
        yield on(f"profile {name}", "YAML", "profile recipe.yaml --data photos", put("recipe.yaml", _YAMLS[name]))
    for name, content in _STUDIES.items():
        yield on(f"study {name}", "YAML", line("compare"), put("study.yaml", content + "\n"), kept=_KEPT)


def _with_photos(here: Path) -> None:
    (here / "photos").mkdir()
    (here / "photos/a.png").write_bytes(blank(16, 16))


# -- paths


def _paths() -> Iterator[Case]:
    cause = "paths"
    for name, path in {
        "unknown user": "~nosuchuser/x",
        "long name": "n" * 300,
        "missing": "no",
        "below a file": "f/x",
    }.items():
        for command, word in (
            *((command, "photos") for command in ("pretrain", "evaluate", "embed npz")),
            *((command, "w.safetensors") for command in ("evaluate", "embed npz", "segment")),
            *((command, "photos/red/000.png") for command in ("concepts", "reconstruct")),
            ("segment", "examples"), ("segment", "frames"), ("track", "frames"), ("track", "mask.png"),
        ):  # fmt: skip
            words = [path if each == word else each for each in line(command)]
            yield on(f"{command} {word} {name}", cause, words, put("f", "a file"))
        for words in (
            f"pretrain {path}.yaml --out out",
            " ".join([*line("pretrain"), "--init", path]),
            f"pretrain --resume {path}",
            f"report {path}",
        ):
            yield on(f"{words[:30]} {name}", cause, words, put("f", "a file"))
    for command, file in (("segment", "w.safetensors"), ("track", "mask.png"), ("concepts", "photos/red/000.png")):
        yield on(f"{command} folder for {file}", cause, line(command), put(file, Path.mkdir))
    odd = ("[red]photos", "pho[/]tos", "photos :cat:", "-photos", "photos\n2", "phötos ☃", "pho'to\"s;&|")
    for name in (*odd, os.fsdecode(b"ph\xff\xfetos")):
        words = ["embed", "w.safetensors", "--data", f"./{name}", "--out", "out.npz"]
        exits = (0,) if name in odd else _EITHER
        yield on(f"data in {name!r}", cause, words, partial(_renamed_photos, name), exits=exits)


def _renamed_photos(name: str, here: Path) -> None:
    (here / name).parent.mkdir(exist_ok=True)
    _with_photos(here)
    (here / "photos").rename(here / name)


# -- inputs that would be read as something else


def _meaning() -> Iterator[Case]:
    cause = "wrong meaning"

    def one_stem(here: Path) -> None:
        Image.open(here / "frames/00000.jpg").save(here / "frames/00000.png")

    def all_masks(here: Path, ended: Ended) -> str | None:
        found = sorted(path.name for path in (here / "out/masks").iterdir())
        return None if len(found) == 3 else f"3 images, but the masks {found}"

    def second_example(here: Path) -> None:
        Image.open(here / "examples/00000.jpg").save(here / "examples/00000.webp")

    yield on("segment: two images of one stem", cause, line("segment"), one_stem, exits=(0,), check=all_masks)
    yield on("segment: two examples of one mask", cause, line("segment"), second_example)
    for command, file in (("track", "mask.png"), ("segment", "examples/00000.png")):
        yield on(f"{command}: float mask", cause, line(command), partial(_float_mask, file))

    def planted(here: Path) -> None:
        prepared(here, "c.safetensors")
        (here / "c.concepts.safetensors").rename(here / "w.concepts.safetensors")

    yield on("concepts file of another model", cause, "concepts w.safetensors photos/red/000.png --out out", planted)
    allowed = {
        "finetune from it": f"finetune finetuned --task probe --data labelled --out out {FINETUNING} "
        "task.learning_rates=[1.0]",
        "pretrain from it": f"pretrain {DINO} --data photos --init finetuned --out out",
        "embed": "embed finetuned --data photos --out out.npz",
        "evaluate knn": "evaluate finetuned --data photos --protocols knn knn.k=2 --out out",
    }
    for name, words in allowed.items():
        yield on(f"a fine-tuned run, {name}", cause, words, exits=(0,))
    yield on("data moved", cause, "finetune --resume finetuned data.path=labelled", exits=(0,), outputs=("finetuned*",))
    profile = f"profile {DINO} --data photos --steps 1"
    yield on("profile writes nothing", cause, profile, exits=(0,))
    for name, words in {"missing data": "--data nowhere", "a missing model": ""}.items():  # pixels are not trained
        study = put("study.yaml", "steps: 2\nruns: {a: {model: nowhere}}\n") if name == "a missing model" else None
        yield on(f"compare with {name}", cause, line("compare", *words.split()), study, exits=_EITHER, kept=_KEPT)


def _float_mask(file: str, here: Path) -> None:
    Image.fromarray(read_mask(here / file).numpy().astype(np.float32) / 7).save(here / file, "TIFF")


# -- labelled images


def _flat(here: Path) -> None:
    """Images without labels."""
    for path in list((here / "labelled").glob("*/*.png")):
        path.rename(here / "labelled" / f"{path.parent.name}{path.name}")
    for folder in ("red", "green", "blue"):
        (here / "labelled" / folder).rmdir()


def _each(pattern: str, change: Change) -> Change:
    return lambda here: [change(path) for path in (here / "labelled").glob(pattern)]


def _labelled() -> Iterator[Case]:
    cause = "labelled images"
    bad = _each("*/*.png", lambda path: path.write_bytes(b"not an image"))
    for name, change, exits in (
        ("one class", remove("labelled/red", "labelled/blue"), (2,)),
        ("no classes", _flat, (2,)),
        ("one image per class", _each("*/00[123].png", Path.unlink), (2,)),
        ("an empty class", lambda here: (here / "labelled/zebra").mkdir(), _EITHER),
        ("all images are damaged", bad, (2,)),
        ("gone", remove("labelled"), (2,)),
        ("a file", put("labelled", lambda path: path.write_text("x")), (2,)),
    ):
        yield on(f"finetune, {name}", cause, line("finetune"), change, exits=exits, kept=_KEPT)
    for name, change, exits in (
        ("an unknown class", lambda here: (here / "labelled/red").rename(here / "labelled/zebra"), (2,)),
        ("a missing class", remove("labelled/red"), (0,)),
        ("no classes", _flat, (2,)),
        ("all images are damaged", bad, (2,)),
    ):
        words = "evaluate finetuned --data labelled"
        yield on(f"evaluate, {name}", cause, words, change, exits=exits, outputs=("finetuned/eval*",))


# -- tar shards


def _tar_shards(choice: random.Random) -> Iterator[Case]:
    cause = "tar shards"
    lines = {
        "embed": "embed w.safetensors --data shards --out out.npz",
        "pretrain": f"pretrain {DINO} --data shards --out out",
        "evaluate": "evaluate w.safetensors --data shards --out out",
    }
    for name, make in TARS.items():
        tolerable = name == "zeros" or "path=a\\x00" in name
        for command, words in lines.items():
            if command == "embed" or name in ("cut off", "sparse") or "99999999999" in name or "-0000" in name:
                exits = _EITHER if tolerable else (2,)
                yield on(f"{command} {name}", cause, words, partial(_tar, make()), exits=exits)
    yield on("nothing is written next to the data", cause, lines["embed"], partial(_tar, shard()), exits=(0,))
    for number in range(40):
        change = partial(_tar, _damaged_tar(random.Random(choice.randrange(2**32))))
        yield on(f"embed damage {number}", cause, lines["embed"], change, exits=_EITHER, slow=number > 5)


def _tar(content: bytes, here: Path) -> None:
    put("shards/a.tar", content)(here)
    os.utime(here / "shards/a.tar", (1e9, 1e9))  # old enough for its index to be stored


def _damaged_tar(choice: random.Random) -> bytes:
    """Some bytes changed, mostly in headers."""
    content = bytearray(shard())
    for _ in range(choice.randint(1, 8)):
        header = 512 * choice.randrange(len(content) // 512)
        place = header + choice.choice([0, 100, 124, 136, 148, 156, 257, 345]) + choice.randrange(8)
        content[place] = choice.randrange(256)
    return bytes(content[: choice.choice([None, choice.randrange(len(content))])])


# -- weights


def _weights(choice: random.Random) -> Iterator[Case]:
    cause = "weights"
    words = line("embed npz")
    headers = {
        f"{length} bytes": struct.pack("<Q", length) + b"{}" for length in (0, 7, 10**6, 2**40, 2**63 - 1, 2**64 - 1)
    }
    deep, outside = b'{"a":' * 100_000, {"a": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 1 << 42]}}
    for text in (deep, json.dumps(outside).encode(), b"[]"):
        headers[f"{text[:9]!r}"] = struct.pack("<Q", len(text)) + text
    for name, content in headers.items():
        yield on(f"header of {name}", cause, words, put("w.safetensors", content), megabytes=1200)
    for suffix in ("pth", "bin", "ckpt", "safetensors"):
        for name, content in {
            "empty": b"",
            "text": b"x" * 99,
            "zip": b"PK\x03\x04" * 9,
            "pickle": b"\x80\x04N.",
        }.items():
            yield on(
                f"{name}.{suffix}", cause, f"embed x.{suffix} --data photos --out out.npz", put(f"x.{suffix}", content)
            )
    for number in range(20):
        change = partial(_damaged_header, choice.randrange(2**32))
        yield on(f"damage {number}", cause, words, change, exits=_EITHER, slow=number > 3)


def _damaged_header(seed: int, here: Path) -> None:
    choice, content = random.Random(seed), bytearray((here / "w.safetensors").read_bytes())
    header = 8 + int.from_bytes(content[:8], "little")
    for _ in range(choice.randint(1, 5)):
        content[choice.randrange(header)] = choice.randrange(256)
    (here / "w.safetensors").write_bytes(content)


# -- annotations

_OBJECT = {"id": 1, "image_id": 1, "category_id": 1, "area": 9, "iscrowd": 0, "segmentation": [[1, 1, 9, 1, 9, 9]]}
_IMAGE = {"id": 1, "file_name": "a.png", "height": 24, "width": 32}
_COCO: dict[str, Any] = {"images": [_IMAGE], "categories": [{"id": 1, "name": "thing"}], "annotations": [_OBJECT]}


def _outlined(segmentation: object) -> dict[str, Any]:
    return _COCO | {"annotations": [_OBJECT | {"segmentation": segmentation}]}


def _sized(height: object, width: object) -> dict[str, Any]:
    return _COCO | {"images": [_IMAGE | {"height": height, "width": width}]}


_COCOS: dict[str, object] = {
    "list": [],
    "number": 5,
    "no images": {"annotations": [], "categories": []},
    "images number": _COCO | {"images": 5},
    "images of text": _COCO | {"images": ["a.png"]},
    "category without name": _COCO | {"categories": [{"id": 1}]},
    "unknown category": _COCO | {"categories": [{"id": 2, "name": "x"}]},
    "size text": _sized("x", 32),
    "size huge": _sized(10**7, 10**7),
    "size negative": _sized(-5, 32),
    "runs huge": _outlined({"size": [24, 32], "counts": [10**12]}),
    "runs negative": _outlined({"size": [24, 32], "counts": [-5, 773]}),
    "runs text": _outlined({"size": [24, 32], "counts": ["x"]}),
    "polygon text": _outlined([["x"] * 6]),
    "polygon nan": _outlined([[float("nan")] * 6]),
    "no area": _COCO | {"annotations": [{"id": 1, "image_id": 1, "category_id": 1, "segmentation": []}]},
}
_BOXES = {
    "no JSON": "x",
    "list": "[]",
    "number": '{"red/000.png": 5}',
    "nan": '{"red/000.png": [0, 0, NaN, 5]}',
    "text": '{"red/000.png": "box"}',
    "deep": "[" * 50_000,
    "upside down": '{"red/000.png": [9, 9, 1, 1]}',
}


def _annotations(choice: random.Random) -> Iterator[Case]:
    cause, words = "annotations", "evaluate w.safetensors --data coco -p dense-nn --out out dense-nn.k=1"
    whole = json.dumps(_COCO)
    texts = {name: json.dumps(content) for name, content in _COCOS.items()}
    for name, text in (texts | {"no JSON": "x", "deep": "[" * 50_000, "empty": "", "cut off": whole[:60]}).items():
        yield on(f"COCO {name}", cause, words, partial(_coco, text))
    for name, text in _BOXES.items():
        boxes = line("evaluate", "-p", "bbox-knn", "bbox-knn.k=1")
        yield on(f"boxes {name}", cause, [word for word in boxes if word != "knn.k=2"], put("photos/boxes.json", text))
    for number in range(10):
        at = choice.randrange(len(whole))
        change = partial(_coco, whole[:at] + whole[at + 1 :])
        yield on(f"COCO without byte {number}", cause, words, change, exits=_EITHER, slow=number > 2)


def _coco(text: str, here: Path) -> None:
    for part in ("train", "val"):
        put(f"coco/annotations/instances_{part}.json", text)(here)
    (here / "coco/images").mkdir()
    Image.new("RGB", (32, 24)).save(here / "coco/images/a.png")


# -- captions


def _row(**changes: Any) -> str:
    return json.dumps({"image": "red0.png", "captions": ["a red picture"]} | changes)


_RED = {"id": 1, "file_name": "red0.png"}
_LISTS: dict[str, dict[str, str | bytes]] = {
    "captions.jsonl": {
        "empty": "",
        "no JSON": "x",
        "a number": "5",
        "deep": "[" * 50_000,
        "cut off": _row()[:-9],
        "not UTF-8": b'{"image": "\xff\xfe"}',
        "NUL": "\0" * 99,
        "no image": json.dumps({"captions": ["x"]}),
        "no caption": json.dumps({"image": "red0.png"}),
        "caption number": _row(captions=[5]),
        "caption empty": _row(captions=[" "]),
        "caption list empty": _row(captions=[]),
        "caption half a character": _row(captions=["\ud800"]),
        **{f"image {name[:12]!r}": _row(image=name) for name in (
            "gone.png", ".", "n" * 5000, "a\0.png", "\ud800.png", "captions.jsonl", "../../../../etc/passwd",
            "/etc/passwd", "/dev/zero")},
        "negatives number": _row(negatives=5),
        "negatives wrong": _row(negatives=[{"text": 5}]),
        "one image": _row(),  # too few to train on or to hold out
    },
    "list.csv": {
        "empty": "",
        "no header": "red0.png,a red picture\n",
        "other columns": "a,b\n1,2\n",
        "too many cells": "image,caption\nred0.png,a,b\n",
        "unclosed quote": 'image,caption\nred0.png,"a\n',
        "NUL": "image,caption\nred0.png,\0\n",
        "a field of 200 kB": f"image,caption\nred0.png,{'x' * 200_000}\n",
        "not UTF-8": b"image,caption\n\xff,x\n",
    },
    "list.json": {name: json.dumps(content) for name, content in {
        "list": [],
        "no annotations": {"images": []},
        "images number": {"images": 5, "annotations": []},
        "unknown image": {"images": [], "annotations": [{"image_id": 1, "caption": "x"}]},
        "image list": {"images": [_RED | {"id": [1]}], "annotations": [{"image_id": [1], "caption": "x"}]},
        "caption number": {"images": [_RED], "annotations": [{"image_id": 1, "caption": 5}]},
    }.items()},
}  # fmt: skip
_TAR_TEXTS: dict[str, tuple[str, bytes]] = {
    "no caption": ("red0.cls", b"1"),
    "empty": ("red0.txt", b""),
    "2 MB": ("red0.txt", b"x" * (2 << 20)),
    "no JSON": ("red0.json", b"{"),
    "deep": ("red0.json", b"[" * 50_000),
    "half a character": ("red0.json", b'{"caption": "\\ud800"}'),
}


def _captions(choice: random.Random) -> Iterator[Case]:
    cause = "captions"
    for file, contents in _LISTS.items():
        words = f"align w.safetensors --data captions/{file} --out out {ALIGNING}"
        for name, content in contents.items():
            exits = _EITHER if name == "one image" else (2,)
            yield on(f"{file} {name}", cause, words, put(f"captions/{file}", content), exits=exits)
    words = f"align w.safetensors --data captions/a.tar --out out {ALIGNING}"
    for name, (member, content) in _TAR_TEXTS.items():
        yield on(f"tar {name}", cause, words, partial(_captioned_tar, member, content))
    for number in range(12):
        change = partial(_damaged_list, choice.randrange(2**32))
        yield on(f"JSONL damage {number}", cause, line("align"), change, exits=_EITHER, slow=number > 2)


def _captioned_tar(member: str, content: bytes, here: Path) -> None:
    put("captions/a.tar", tar({"red0.png": (here / "captions/red0.png").read_bytes(), member: content}))(here)


def _damaged_list(seed: int, here: Path) -> None:
    choice, content = random.Random(seed), bytearray((here / CAPTIONS).read_bytes())
    for _ in range(choice.randint(1, 6)):
        content[choice.randrange(len(content))] = choice.randrange(256)
    (here / CAPTIONS).write_bytes(content)
