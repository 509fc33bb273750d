"""Features on disk: worked out once for an encoder, data, transform and layer, and used by every protocol.

Rows are written as they come and read by mapping the files into memory, so memory holds a batch and whatever pages are
in use. After every batch a line in `progress.jsonl` says what is safely there: whoever was interrupted goes on behind
the last line. One process writes at a time; others wait and find the work done.

They lie in the user's cache, in `features`; the longest unused are deleted when all together exceed
$ASTERISM_FEATURES_GB (50). Small sources are worked out in a temporary folder and forgotten.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from asterism.data import BadImage
from asterism.data.index_cache import user_cache
from asterism.errors import UserError
from asterism.nn.encoder import Encoder

WORTH_KEEPING = 256  # images
_PROGRESS, _IDENTITY, _LOCK = "progress.jsonl", "identity.json", ".lock"
_LIMIT = "ASTERISM_FEATURES_GB"
_FORMAT = 1  # counts changes of what the files mean


@dataclass(frozen=True)
class Block:
    """What a batch of images gave: for each array, the rows of each readable image."""

    keys: list[str]
    arrays: Mapping[str, list[Shaped[Tensor, "_ ..."]]]
    labels: list[int] | None = None  # of the readable images
    unreadable: list[BadImage] = field(default_factory=list)


@dataclass(frozen=True)
class Stored:
    """Arrays whose rows belong to images: rows first[i] … first[i + 1] of `arrays[name]` to image i."""

    arrays: Mapping[str, Shaped[Tensor, "_ ..."]]  # mapped from files
    first: Mapping[str, Int[Tensor, " _"]]
    keys: list[str]
    labels: Int[Tensor, " n"] | None
    unreadable: list[BadImage]

    def of(self, name: str, image: int) -> Shaped[Tensor, "_ ..."]:
        start, end = self.first[name][image : image + 2].tolist()
        return self.arrays[name][start:end]


def stored(identity: Mapping[str, Any] | None, images: int, produce: Callable[[int], Iterator[Block]]) -> Stored:
    """The arrays of all images; `produce(i)` works out those that are missing, from image i on.

    `identity` is everything the rows depend on; None where nothing is to be kept. Blocks must cover the images in
    order, each either read or unreadable.
    """
    if identity is None or images < WORTH_KEEPING:
        with tempfile.TemporaryDirectory(prefix="asterism-") as place:
            return _complete(Path(place), images, produce)  # mapped files outlive their names
    text = json.dumps({"format": _FORMAT, **identity}, sort_keys=True)
    folder = features_folder() / hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    try:
        _make_room(folder)
        folder.mkdir(parents=True, exist_ok=True)
        with _alone(folder):
            (folder / _IDENTITY).write_text(text, encoding="utf-8")
            return _complete(folder, images, produce)
    except OSError as error:
        raise UserError(
            f"cannot keep features in {folder}: {error}; free space there, or set XDG_CACHE_HOME to a folder with room"
        ) from None


def encoder_fingerprint(encoder: Encoder) -> str:
    """A hash of the weights and of how pixels reach them."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(repr((type(encoder).__name__, encoder.mean, encoder.std, encoder.image_size)).encode())
    for name, tensor in encoder.state_dict().items():
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def features_folder() -> Path:
    return user_cache() / "features"


def _complete(folder: Path, images: int, produce: Callable[[int], Iterator[Block]]) -> Stored:
    lines = _progress(folder)
    done = sum(_images(line) for line in lines)
    _cut_back(folder, lines)
    if done < images:
        with contextlib.ExitStack() as files:
            handles: dict[str, Any] = {}
            for block in produce(done):
                lines.append(_append(folder, block, handles, files))
    os.utime(folder)
    return _mapped(folder, lines)


def _append(folder: Path, block: Block, handles: dict[str, Any], files: contextlib.ExitStack) -> dict[str, Any]:
    """Write the rows, then the line that vouches for them."""
    for name in (*block.arrays, _PROGRESS):
        if name not in handles:
            handles[name] = files.enter_context((folder / name).open("ab"))
    arrays = {}
    for name, parts in block.arrays.items():
        whole = torch.cat([part.detach().cpu() for part in parts]) if parts else None
        if whole is not None:
            handles[name].write(whole.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
            handles[name].flush()
            shape, dtype = list(whole.shape[1:]), str(whole.dtype).removeprefix("torch.")
            arrays[name] = {"rows": [len(part) for part in parts], "shape": shape, "dtype": dtype}
    line = {
        "keys": block.keys,
        "labels": block.labels,
        "unreadable": [[bad.key, bad.reason] for bad in block.unreadable],
        "arrays": arrays,
    }
    handles[_PROGRESS].write(json.dumps(line).encode() + b"\n")
    handles[_PROGRESS].flush()
    return line


def _progress(folder: Path) -> list[dict[str, Any]]:
    """The lines that were written whole, and whose rows are there: a crash of the machine may lose either."""
    try:
        text = (folder / _PROGRESS).read_bytes()
    except FileNotFoundError:
        return []
    lines: list[dict[str, Any]] = []
    for line in text.split(b"\n")[:-1]:
        try:
            lines.append(json.loads(line))
        except ValueError:
            break
    while lines and not all(_size(folder / name) >= size for name, size in _sizes(lines).items()):
        lines.pop()
    return lines


def _cut_back(folder: Path, lines: list[dict[str, Any]]) -> None:
    """Remove rows and half a line that an interruption left behind."""
    sizes = _sizes(lines)
    for file in folder.iterdir():
        if file.name not in (_PROGRESS, _IDENTITY, _LOCK) and _size(file) != sizes.get(file.name, 0):
            os.truncate(file, sizes.get(file.name, 0))
    kept = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    progress = folder / _PROGRESS
    if _size(progress) != len(kept):
        temporary = folder / f".{_PROGRESS}"
        temporary.write_bytes(kept)
        temporary.replace(progress)


def _sizes(lines: list[dict[str, Any]]) -> dict[str, int]:
    """Bytes of each array."""
    sizes: dict[str, int] = {}
    for line in lines:
        for name, array in line["arrays"].items():
            sizes[name] = sizes.get(name, 0) + sum(array["rows"]) * _row_bytes(array)
    return sizes


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def _mapped(folder: Path, lines: list[dict[str, Any]]) -> Stored:
    arrays, first = {}, {}
    for name in dict.fromkeys(name for line in lines for name in line["arrays"]):
        parts = [line["arrays"][name] for line in lines if name in line["arrays"]]
        rows = torch.tensor([0, *(count for part in parts for count in part["rows"])])
        first[name] = rows.cumsum(0)
        shape, dtype = parts[0]["shape"], getattr(torch, parts[0]["dtype"])
        total = int(first[name][-1])
        numbers = total * _numbers(shape)
        place = str(folder / name)
        flat = (
            torch.from_file(place, shared=False, size=numbers, dtype=dtype) if numbers else torch.empty(0, dtype=dtype)
        )
        arrays[name] = flat.view(total, *shape)
    labelled = all(line["labels"] is not None for line in lines)
    labels = torch.tensor([label for line in lines for label in line["labels"]]) if labelled else None
    return Stored(
        arrays=arrays,
        first=first,
        keys=[key for line in lines for key in line["keys"]],
        labels=None if labels is None else labels.long(),
        unreadable=[BadImage(key, reason) for line in lines for key, reason in line["unreadable"]],
    )


def _images(line: dict[str, Any]) -> int:
    return len(line["keys"]) + len(line["unreadable"])


def _row_bytes(array: dict[str, Any]) -> int:
    return _numbers(array["shape"]) * getattr(torch, array["dtype"]).itemsize


def _numbers(shape: list[int]) -> int:
    return int(torch.Size(shape).numel())


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    fcntl = importlib.import_module("fcntl")
    lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _make_room(wanted: Path) -> None:
    """Delete the longest unused features beyond the limit; never the wanted ones."""
    try:
        limit = float(os.environ.get(_LIMIT, "50")) * 1e9
    except ValueError:
        raise UserError(f"{_LIMIT} = {os.environ[_LIMIT]!r} must be a number of gigabytes, for example 50") from None
    home = features_folder()
    if not home.is_dir():
        return
    folders = sorted((f for f in home.iterdir() if f.is_dir()), key=lambda f: f.stat().st_mtime, reverse=True)
    total = 0.0
    for folder in folders:
        total += sum(file.stat().st_size for file in folder.iterdir())
        if total > limit and folder != wanted:
            shutil.rmtree(folder, ignore_errors=True)
