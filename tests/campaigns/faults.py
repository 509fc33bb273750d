"""What can be wrong with a file: what it is, what it contains, and single values in it. Changes of a folder."""

import io
import json
import os
import shutil
import struct
import tarfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import yaml
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from asterism.nn.safetensors_file import METADATA_KEY, write_safetensors

Change = Callable[[Path], object]
GONE = object()
MARKUP = "<img src=x onerror=alert(1)>"
ESCAPE = "\x1b]0;owned\x07\x1b[2J"  # sets the title of a terminal and clears it


def _huge(file: Path) -> None:
    with file.open("wb") as content:
        content.write(b"\x89PNG\r\n\x1a\n")
        content.truncate(20 << 30)


PLACES: dict[str, Change] = {
    "missing": lambda path: None,
    "a folder": Path.mkdir,
    "a full folder": lambda path: (path.mkdir(), (path / "x").write_text("x")),
    "a broken link": lambda path: path.symlink_to("nowhere"),
    "a link to itself": lambda path: path.symlink_to(path.name),
}
KINDS: dict[str, Change] = {
    **{kind: PLACES[kind] for kind in ("a folder", "a broken link", "a link to itself")},
    "a pipe": os.mkfifo,
    "an endless device": lambda path: path.symlink_to("/dev/zero"),
    "20 GB": _huge,
}
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
WRONG: tuple[Any, ...] = (None, [], {}, "x", -1, 0, 1.5, 1e400, True, 10**30)


def put(file: str, what: bytes | str | Change) -> Change:
    """Content, or something that makes what stands in place of the file."""

    def change(here: Path) -> None:
        path = here / file
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(what, bytes | str):
            path.write_bytes(what if isinstance(what, bytes) else what.encode())
            return
        remove(file)(here)
        what(path)

    return change


def remove(*files: str) -> Change:
    def change(here: Path) -> None:
        for path in (here / file for file in files):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    return change


def both(*changes: Change) -> Change:
    return lambda here: [change(here) for change in changes]


def flipped(file: str, place: float) -> Change:
    """One bit; place: share of the file."""

    def change(here: Path) -> None:
        path = here / file
        if path.exists():
            content = bytearray(path.read_bytes())
            content[int(place * (len(content) - 1))] ^= 1 << (len(content) % 7)
            path.write_bytes(content)

    return change


def set_value(values: Any, key: str, value: Any) -> None:
    """key: names and numbers of list entries, joined by dots."""
    *parents, last = (int(part) if part.isdigit() else part for part in key.split("."))
    for parent in parents:
        values = values[parent]
    if value is GONE:
        del values[last]
    else:
        values[last] = value


def in_json(file: str, key: str, value: Any) -> Change:
    def change(here: Path) -> None:
        values = json.loads((here / file).read_text())
        set_value(values, key, value)
        (here / file).write_text(json.dumps(values))

    return change


def in_yaml(file: str, key: str, value: Any) -> Change:
    def change(here: Path) -> None:
        values = yaml.safe_load((here / file).read_text())
        set_value(values, key, value)
        (here / file).write_text(yaml.safe_dump(values))

    return change


def in_description(file: str, key: str, value: Any, signed: bool = True) -> Change:
    """Of weights. signed: with a checksum that is right, so that only the value is wrong."""

    def change(here: Path) -> None:
        with safe_open(here / file, framework="pt") as opened:
            description = json.loads(opened.metadata()[METADATA_KEY])
        tensors = load_file(here / file)
        description.pop("checksum", None)
        set_value(description, key, value)
        if signed:
            write_safetensors(here / file, tensors, description)
        else:
            save_file(tensors, here / file, {METADATA_KEY: json.dumps(description)})

    return change


class Evil:
    """A pickle of it runs a command when it is loaded: the file `owned` appears."""

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("touch owned",)


def pickled(file: str, content: object = None) -> Change:
    return put(file, lambda path: torch.save(content or {"state_dict": {"a": Evil()}}, path))


# -- images


_NOTHING = zlib.compress(b"")


def png(width: int, height: int, packed: bytes = _NOTHING, extra: tuple[bytes, bytes] | None = None) -> bytes:
    """A grey PNG of this declared size, whose pixels are missing. packed: its pixels; extra: a chunk before them."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    middle = chunk(*extra) if extra else b""
    pixels = chunk(b"IDAT", packed) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + middle + pixels


def bomb(side: int) -> bytes:
    """A PNG of side² zeros, in a few kilobytes per 10 000² pixels."""
    packer = zlib.compressobj(9)
    rows = b"".join(packer.compress(bytes(side + 1)) for _ in range(min(side, 40_000)))
    return png(side, side, rows + packer.flush())


def blank(width: int, height: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("L", (width, height), 90).save(buffer, "PNG")
    return buffer.getvalue()


POSTSCRIPT = "%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 32 24\n(owned) (w) file closefile\nshowpage\n%%EOF\n"
IMAGES: dict[str, Callable[[], bytes]] = {
    "empty": lambda: b"",
    "one byte": lambda: b"\x89",
    "text": lambda: b"no image",
    "PostScript": POSTSCRIPT.encode,
    "SVG": lambda: b"<svg xmlns='http://www.w3.org/2000/svg'/>",
    "PNG without pixels": lambda: png(32, 24),
    "bomb of 4 gigapixels": lambda: png(65_000, 65_000, zlib.compress(bytes(9))),
    "sides of 2^31": lambda: png(2**31 - 1, 2**31 - 1),
    "compressed text of 256 MB": lambda: png(
        16, 16, zlib.compress(bytes(17 * 16)), (b"zTXt", b"a\0\0" + zlib.compress(bytes(1 << 28), 9))
    ),
    "1 × 5000": lambda: blank(1, 5000),
    "8 × 50000": lambda: blank(8, 50_000),
    "5000 × 1": lambda: blank(5000, 1),
    "16 × 1600": lambda: blank(16, 1600),
    "13000 × 13000": lambda: blank(13_000, 13_000),
    "truncated JPEG": lambda: b"\xff\xd8\xff\xe0\0\x10JFIF",
    "JPEG of zero size": lambda: b"\xff\xd8\xff\xc0\0\x0b\x08\0\0\0\0\x01\x01\x11\0\xff\xd9",
}


# -- tar shards


def tar(contents: Mapping[str, bytes], *special: tarfile.TarInfo) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        for member in special:
            archive.addfile(member)
    return buffer.getvalue()


def shard() -> bytes:
    """Four images with their classes."""
    files = {f"{number:04}": {"png": blank(16, 16), "cls": str(number % 2).encode()} for number in range(4)}
    return tar({f"{name}.{suffix}": content for name, parts in files.items() for suffix, content in parts.items()})


def resealed(content: bytes, at: int, field: bytes) -> bytes:
    """A tar file with a changed field in its first header, whose checksum is right."""
    header = bytearray(content[:512])
    header[at : at + len(field)] = field
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + content[512:]


def with_class(text: bytes) -> bytes:
    return tar({"a.png": blank(16, 16), "a.cls": text})


def pax(records: bytes) -> bytes:
    """A tar file whose first member is preceded by these pax records."""
    member = tarfile.TarInfo("pax")
    member.type, member.size = b"x", len(records)
    return member.tobuf(tarfile.USTAR_FORMAT) + records.ljust(-(-len(records) // 512) * 512, b"\0") + shard()


TARS: dict[str, Callable[[], bytes]] = {
    "empty": lambda: b"",
    "one byte": lambda: b"x",
    "zeros": lambda: bytes(2048),
    "short header": lambda: shard()[:100],
    "half a header": lambda: shard()[:700],
    "cut off": lambda: shard()[:-3000],
    "no archive": lambda: b"PK\x03\x04" * 300,
    **{f"size {text!r}": lambda text=text: resealed(shard(), 124, text) for text in (
        b"-0000001000\0", b"+0000000001\0", b"00000001_00\0", b"xxxxxxxxxxx\0", b"77777777777\0",
        b"\x80" + b"\xff" * 11, b"\xff" * 12)},  # the last two: base 256, too large and negative
    "sparse": lambda: resealed(shard(), 156, b"S"),
    "wrong checksum": lambda: shard()[:148] + b"0000000\0" + shard()[156:],
    "long name of 8 GB": lambda: resealed(resealed(shard(), 156, b"L"), 124, b"77777777777\0"),
    **{f"class {text[:12]!r}": lambda text=text: with_class(text) for text in (
        b"99999999999", b"9" * 40, str(2**63).encode())},
    **{f"pax {text[:22]!r}": lambda text=text: pax(text) for text in (
        b"11 size=-1\n", b"10 size=x\n", b"410 size=" + b"9" * 400 + b"\n", b"0 size=1\n", b"999 path=a\n",
        b"x path=a\n", b"22 GNU.sparse.major=1\n", b"15 path=a\0b.png\n")},
}  # fmt: skip
