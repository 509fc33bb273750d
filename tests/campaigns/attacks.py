"""Attacks: files from strangers that try to run code, to reach other files or the network, or to use up the machine.

Code that runs creates a file named `owned`, which the snapshot of the folder reveals.
"""

import contextlib
import json
import os
import pickle
import socket
import subprocess
import tarfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tests.campaigns.campaign import Case
from tests.campaigns.disks import read_only
from tests.campaigns.faults import (
    ESCAPE,
    MARKUP,
    POSTSCRIPT,
    Change,
    Evil,
    blank,
    bomb,
    both,
    in_description,
    pickled,
    put,
    remove,
    tar,
)
from tests.campaigns.materials import CAPTIONS, DINO, line, on, prepared
from tests.campaigns.processes import Ended, execute

_EITHER = (0, 2)
_SMALL_MEMORY = 1200  # megabytes, of which the imports take 600
_SHELL = "$(touch owned);`touch owned`;touch owned #"
_CLASSES = ("blue", "green", "red")


def cases(seed: int) -> Iterator[Case]:
    yield from _archives()
    yield from _pickles()
    yield from _yaml()
    yield from _descriptions()
    yield from _programs()
    yield from _bombs()
    yield from _names()
    yield from _scripts()
    yield from _links()
    yield from _server()


# -- archives


def _member(name: str, kind: bytes, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


def _archives() -> Iterator[Case]:
    escaped = Path("/tmp/asterism-escaped.png")
    files = {"../../escaped.png", str(escaped), "~/escaped.png", "a\nb.png", "C:\\escaped.png"}
    archives = {name: tar({"good.png": blank(16, 16), name: blank(16, 16)}) for name in sorted(files)}
    for kind, member in {
        "symbolic link": _member("secret.png", tarfile.SYMTYPE, "../secret.png"),
        "hard link": _member("secret.png", tarfile.LNKTYPE, "../secret.png"),
        "device": _member("zero.png", tarfile.CHRTYPE),
        "pipe": _member("pipe.png", tarfile.FIFOTYPE),
    }.items():
        archives[kind] = tar({"good.png": blank(16, 16)}, member)

    def check(here: Path, ended: Ended, kind: str) -> str | None:
        if escaped.exists():
            return "a file was written outside"
        if ended.code == 0 and "link" in kind and len(np.load(here / "out.npz")["keys"]) != 1:
            return "a link of the archive was followed"
        return None

    for kind, content in archives.items():
        change = both(put("secret.png", blank(16, 16)), put("shards/a.tar", content))
        words = "embed w.safetensors --data shards --out out.npz"
        yield on(
            repr(kind), "archives that reach outside", words, change,
            exits=_EITHER, check=partial(check, kind=kind), megabytes=_SMALL_MEMORY,
        )  # fmt: skip


# -- code in files


def _pickles() -> Iterator[Case]:
    cause = "pickles that run code"
    contents = {"alone": Evil(), "in a state dict": {"state_dict": {"a": Evil()}}, "as a key": {"model": [(Evil(), 1)]}}
    for suffix in (".pth", ".pt", ".bin", ".ckpt", ".safetensors"):
        file = f"evil{suffix}"
        for kind, content in contents.items():
            for form, change in (("zip", pickled(file, content)), ("plain", put(file, pickle.dumps(content)))):
                words = f"embed {file} --data photos --out out.npz"
                yield on(f"{suffix}, {form}, {kind}", cause, words, change)
    for words in (
        f"pretrain {DINO} --data photos --init evil.pth --out out",
        " ".join(line("distill", "method.teacher=evil.pth")),
        " ".join("evil.pth" if word == "w.safetensors" else word for word in line("finetune")),
        "explore evil.pth --data photos --no-browser",
        "export evil.pth --to timm --out out",
    ):
        yield on(words[:60], cause, words, pickled("evil.pth"), seconds=60)
    yield on("a model", cause, line("predict"), pickled("finetuned/model.safetensors"))
    for array in ("keys", "metadata", "embeddings"):
        yield on(f"index, {array}", cause, line("search html"), partial(_evil_array, array))
    truth = put("roxford5k/gnd_roxford5k.pkl", pickle.dumps({"imlist": [Evil()]}))
    words = "evaluate w.safetensors --data roxford5k --protocols retrieval --out out"
    yield on("ground truth of landmarks", cause, words, truth)


def _evil_array(array: str, here: Path) -> None:
    arrays = dict(np.load(here / "index.npz"))
    arrays[array] = np.array([Evil()] * len(arrays["keys"]), dtype=object)
    np.savez(here / "index.npz", **arrays)


def _yaml() -> Iterator[Case]:
    for number, tag in enumerate((
        "!!python/object/apply:os.system ['touch owned']",
        "!!python/object/new:os.system ['touch owned']",
        "!!python/name:os.system",
        "!!python/module:os",
    )):  # fmt: skip
        recipe = put("evil.yaml", f"method: {{name: dino}}\ntrainer: {tag}\n")
        for place, words, change in (
            ("recipe", "pretrain evil.yaml --data photos --out out", recipe),
            ("study", "compare evil.yaml --out out", put("evil.yaml", f"runs: {tag}\n")),
            ("run", "report pretrained", partial(_appended, "pretrained/config.yaml", f"\nextra: {tag}\n")),
            ("override", line("pretrain", f"optim.lr={tag}"), None),
        ):
            yield on(f"{place}, {number}", "YAML that runs code", words, change)


def _appended(file: str, text: str, here: Path) -> None:
    (here / file).write_text((here / file).read_text() + text)


# -- weights that describe something else


def no_network() -> None:
    """In the process of a command: a connection creates the file `owned`."""

    def connect(self: socket.socket, address: object) -> None:
        if self.family in (socket.AF_INET, socket.AF_INET6):
            Path("owned").write_text(repr(address))
        raise ConnectionRefusedError

    socket.socket.connect = connect  # type: ignore[method-assign]
    socket.getaddrinfo = lambda *words, **more: connect(socket.socket(), words)  # type: ignore[assignment]


def _network(prefix: str) -> dict[str, list[Any]]:
    """Values of an encoder's description, whose keys begin with this."""
    own = {
        "mean": [["a", "b", "c"], [0, 0], [float("nan")] * 3, 5],
        "std": [[0, 0, 0], None],
        "image_size": [1 << 40, -16, "16", 17],
        "architecture": [None, {"name": "https://attacker.example/"}],
        "architecture.name": ["hf-hub:attacker/model", "local-dir:/etc", "no_such_model", ""],
        "architecture.arguments": [[]],
        "architecture.arguments.pretrained": [True],
        "architecture.arguments.pretrained_cfg_overlay": [{"url": "http://attacker.example/w"}, {"hf_hub_id": "a/b"}],
        "architecture.arguments.checkpoint_path": ["/etc/passwd"],
        "architecture.arguments.cache_dir": ["owned"],
        "architecture.arguments.scriptable": [True],
        "architecture.arguments.embed_dim": [1 << 20, -16, 0],
        "architecture.arguments.depth": [10_000, -1],
        "architecture.arguments.norm_layer": ["os.system"],
    }
    return {f"{prefix}{key}": values for key, values in own.items()}


_FROZEN = {"kind": "frozen", "fingerprint": "0"}
_DESCRIPTIONS: dict[str, tuple[list[str] | str, dict[str, list[Any]]]] = {
    "w.safetensors": (line("embed npz"), _network("") | {"step": ["many", {"a": 1}]}),
    "finetuned/model.safetensors": (line("predict"), _network("network.") | {
        "kind": ["encoder", None, 5],
        "task": [None, [], {}, {"name": "nothing"}, {"name": "os.system"}, {"name": ["classify"]}, {"name": "probe"}],
        "task.name": ["probe", "../../evil", "asterism.evil:Evil", None],
        "task.head": [None, "nothing", {"name": "first-layer"}, {"name": "first-layer", "hidden": 10**9},
                      {"name": "first-layer", "hidden": -1}, {"name": "linear", "norm": True}],
        "task.nothing": [1],
        "classes": [[], ["a"], None, [1, 2, 3], ["a"] * 900_000, ["a" * 5000] * 3, "abc", {"a": 1}],
        "step": [-1, "x", {"a": 1}, 10**30],
        "network": [None, {}, []],
    }),
    "aligned/alignment.safetensors": ("embed aligned --data captions --out out.npz", {
        "kind": ["encoder", None],
        "tokens": ["x", None, ["sparse"]],
        "probe": [None, [], {}],
        "probe.dim": [1 << 40, 0, -1, "x"],
        "probe.heads": [0, 7, 1 << 20],
        "probe.mlp_ratio": [1e12, -1, "x"],
        "encoder": ["", None, 5, "0" * 32],
        "step": [-1, "x"],
        "text": [None, [], {}, {"kind": "frozen"}, {"kind": "os.system", "name": "touch owned"}, *(
            _FROZEN | {"name": name} for name in (
                "hf:attacker/model", "open_clip:ViT-B-32:laion2b_s34b_b79k", "open_clip:hf-hub:attacker/model", "/etc",
                "https://attacker.example/", ["x"]))],
        "text.words": [None, 5, [5], ["a"] * 2_000_000, ["a" * 5000] * 3, {"a": 1}],
        "text.config": [None, [], {"nothing": 1}],
        "text.config.dim": [1 << 24, 0, -16, "x"],
        "text.config.depth": [10_000, 0],
        "text.config.context": [1 << 30, 0],
        "text.config.name": ["hf:attacker/model"],
    }),
}  # fmt: skip


def _descriptions() -> Iterator[Case]:
    for file, (words, values) in _DESCRIPTIONS.items():
        pairs = ((f"{key} {number}", value) for key, options in values.items() for number, value in enumerate(options))
        for name, wrong in pairs:
            key = name.partition(" ")[0]
            # A file of another kind is not an alignment, and the name of an own tower is a name.
            tolerable = file.startswith("aligned") and key in ("text.config.name", "kind")
            for signed in (True, False):
                yield on(
                    f"{file} {name} = {str(wrong)[:50]}{'' if signed else ', without checksum'}",
                    "weights that describe an attack", words, in_description(file, key, wrong, signed),
                    exits=_EITHER if tolerable else (2,), inside=no_network, megabytes=_SMALL_MEMORY,
                )  # fmt: skip


# -- programs and bombs

_PICTURES = {
    "embed npz": "photos/red/000.png",
    "concepts": "photos/red/000.png",
    "reconstruct": "photos/red/000.png",
    "search html": "photos/red/000.png",
    "track": "mask.png",
    "segment": "examples/00000.png",
    "pretrain": "photos/red/000.png",
}


def fake_programs() -> None:
    """In the process of a command: programs that image libraries call create the file `owned`."""
    os.environ["PATH"] = f"{Path('programs').resolve()}:{os.environ['PATH']}"


def _planted_programs(here: Path, folder: str, names: tuple[str, ...], text: str) -> None:
    for name in names:
        put(f"{folder}/{name}", f"#!/bin/sh\n{text}")(here)
        (here / folder / name).chmod(0o755)


def _programs() -> Iterator[Case]:
    names = ("gs", "ghostscript", "convert", "magick", "djpeg", "xv", "display")
    plant = lambda here: _planted_programs(here, "programs", names, f"touch '{here}/owned'\nexit 1\n")  # noqa: E731
    for name, file in _PICTURES.items():
        kept = ("out", "out/*") if name == "pretrain" else ()  # the list of bad images that its sentence names
        yield on(
            name, "images that start programs", line(name), both(put(file, POSTSCRIPT), plant),
            exits=_EITHER, kept=kept, inside=fake_programs,
        )  # fmt: skip


def _bombs() -> Iterator[Case]:
    for side in (13_000, 65_535):
        for name in ("embed npz", "concepts", "track", "segment"):
            change = put(_PICTURES[name], lambda path, side=side: path.write_bytes(bomb(side)))
            yield on(
                f"{name}, {side}² pixels", "decompression bombs", line(name), change,
                exits=_EITHER, seconds=600, slow=side == 13_000,
            )  # fmt: skip


# -- names


def _no_markup(here: Path, ended: Ended) -> str | None:
    pages = [page for page in here.rglob("*.html") if "<img src=x" in page.read_text()]
    return f"{pages[0].name} contains markup" if pages else None


def _renamed_classes(name: str, here: Path) -> None:
    """Of the images, and of the fine-tuned model."""
    for number, folder in enumerate(_CLASSES):
        (here / "labelled" / folder).rename(here / "labelled" / f"{name}{number}")
    if (here / "finetuned").exists():
        in_description("finetuned/model.safetensors", "classes", [f"{name}{number}" for number in range(3)])(here)


def _trained_then(first: list[str], change: Change, here: Path) -> None:
    """The command that is judged reads what another has trained on hostile names."""
    words = prepared(here, first)
    change(here)
    ended = execute(words, here, seconds=300)
    assert ended.code == 0, ended.errors


def _hostile_captions(text: str, here: Path) -> None:
    lines = [json.loads(each) for each in (here / CAPTIONS).read_text().splitlines()]
    for each in lines:
        each["captions"] = [f"{text} {caption}" for caption in each["captions"]]
        each["category"] = each["pair"] = text
        each["negatives"] = [{"text": text, "kind": text}]
    (here / CAPTIONS).write_text("\n".join(map(json.dumps, lines)))


def _renamed(old: str, new: str, here: Path) -> None:
    (here / old).rename(here / new)


def _names() -> Iterator[Case]:
    cause = "hostile names"
    for kind, name in (("markup", MARKUP), ("escapes", ESCAPE)):
        hostile = partial(on, cause=cause, exits=(0,), check=_no_markup)
        indexed = both(
            remove("index.npz"), partial(_renamed, "photos/red", f"photos/{name}"),
            put(f"photos/{name}/x.png", "no image"), lambda here: prepared(here, "index.npz"),
        )  # fmt: skip
        words = ["photos/blue/000.png" if word == "photos/red/000.png" else word for word in line("search html")]
        yield hostile(f"search, {kind}", words=words, change=indexed)
        words = ["concepts", "c.safetensors", f"{name}.png", "photos/blue/000.png", "--out", "out"]
        change = partial(_renamed, "photos/red/000.png", f"{name}.png")
        yield hostile(f"concepts, {kind}", words=words, change=change)
        yield hostile(
            f"report, {kind}", words=["report", name], outputs=("*report.html",),
            change=lambda here, name=name: (prepared(here, "pretrained"), _renamed("pretrained", name, here)),
        )  # fmt: skip
        for command, folder in (("segment", "frames"), ("embed npz", "photos/red")):
            yield hostile(f"{command}, {kind}", words=line(command), change=put(f"{folder}/{name}.png", "no image"))
        trained = partial(_trained_then, line("finetune"), partial(_renamed_classes, name))
        yield hostile(f"report, classes with {kind}", words="report out", change=trained, outputs=("out/report.html",))
        trained = partial(_trained_then, line("align"), partial(_hostile_captions, name))
        for words, outputs in (
            ("report out", "out/report.html"),
            (f"evaluate out --data {CAPTIONS} --protocols text-retrieval,composition", "out/eval*"),
            ("embed out --data captions --out new.npz", "new.npz"),
        ):
            yield hostile(f"{words[:8]}, captions with {kind}", words=words, change=trained, outputs=(outputs,))
        study = put("study.yaml", f'steps: 2\nruns: {{"{MARKUP}": {{model: pixels}}}}\n')
    yield on("a study, markup", cause, line("compare"), study, exits=_EITHER, check=_no_markup)
    for kind, name in (("markup", MARKUP), ("escapes", ESCAPE), ("a formula", "=cmd|' -C calc'!A")):
        for words in ("predict finetuned --images labelled --out out", "evaluate finetuned --data labelled"):
            yield on(
                f"{words[:8]}, classes with {kind}", cause, words, partial(_renamed_classes, name),
                exits=_EITHER, outputs=("out*", "finetuned/eval*"), check=_no_markup,
            )  # fmt: skip
    for kind, text in (("markup", MARKUP), ("escapes", ESCAPE), ("half a character", "a \udcff")):
        for words in (
            ["search", "aligned", "--index", "index.npz", "--text", text, "--out", "out.html"],
            ["concepts", "aligned", "captions/red0.png", "--text", text, "--out", "out"],
        ):
            yield on(f"{words[0]} --text, {kind}", cause, words, exits=_EITHER, check=_no_markup)


# -- scripts, links, and a server


def _scripts() -> Iterator[Case]:
    def hostile(here: Path) -> None:
        (here / "photos").rename(here / _SHELL)
        study = here / "study.yaml"
        study.write_text(study.read_text().replace("photos", json.dumps(_SHELL)))

    def run(here: Path, ended: Ended) -> str | None:
        """With programs that do nothing."""
        _planted_programs(here, "nothing", ("python", "torchrun", "srun", "sbatch"), "")
        for script in here.rglob("*.sh"):
            environment = {"PATH": f"{here / 'nothing'}:/usr/bin:/bin"}
            subprocess.run(["bash", str(script)], cwd=here, env=environment, capture_output=True, check=False)
        return "a script ran the name of a file" if list(here.rglob("owned")) else None

    for text in (_SHELL, f"a'{_SHELL}", f'a"{_SHELL}', f"a\n{_SHELL}"):
        words = line("compare --launch", out=f"out{text}")
        yield on(repr(text[:3]), "names in shell scripts", words, hostile, exits=_EITHER, outputs=("*",), check=run)


def _links() -> Iterator[Case]:
    """Someone else who may write to the folder has planted links under the names of files that will be written."""

    def untouched(here: Path, ended: Ended) -> str | None:
        return None if (here / "precious").read_text() == "precious" else "a planted link was followed"

    def planted(file: str, *gone: str) -> Change:
        link = put(file, lambda path: path.symlink_to(path.parents[len(Path(file).parts) - 1] / "precious"))
        return both(remove(*gone), put("precious", "precious"), link)

    last = "checkpoints/step-00000002"
    resumed = ("checkpoints/.last.tmp", f"{last.replace('step', '.step')}.tmp", "encoder.safetensors")
    tuned = ("model.safetensors", "encoder.safetensors", "metrics.jsonl", "checkpoints/last", "bad_images.jsonl")
    for words, folder, file, gone in (
        ("report pretrained", "pretrained", "report.html", ()),
        (" ".join(line("evaluate")), "out", "knn.json", ()),
        *(("pretrain --resume pretrained", "pretrained", file, (f"pretrained/{last}",)) for file in resumed),
        *(
            ("finetune --resume finetuned data.path=labelled", "finetuned", file, (f"finetuned/{last}",))
            for file in tuned
        ),
    ):
        own = (folder, f"{folder}/*")
        kept = own if gone else ()
        change = planted(f"{folder}/{file}", *gone)
        yield on(
            f"{words[:20]}, {file}",
            "planted links",
            words,
            change,
            exits=_EITHER,
            outputs=own,
            kept=kept,
            check=untouched,
        )


def _server() -> Iterator[Case]:
    """A server that starts would never end, so every case of `explore` has something that must stop it before."""
    words = "explore w.safetensors --data photos --no-browser"
    yield on("port in use", "explore: the machine", f"{words} --port 48231", seconds=60, around=_listening)
    change = lambda here: (here / "out").mkdir()  # noqa: E731
    around = lambda here: read_only(here / "out")  # noqa: E731
    words = f"{words} --allow-writes out/new"
    yield on("writes to a read-only disk", "explore: the machine", words, change, seconds=60, around=around)


@contextlib.contextmanager
def _listening(here: Path) -> Iterator[None]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 48231))
        taken.listen()
        yield
