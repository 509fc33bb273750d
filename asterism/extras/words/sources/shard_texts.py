"""The texts of tar files in WebDataset's layout: NAME.txt next to NAME.jpg, or "caption" in NAME.json."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from asterism.data.sources.shards import Shards, stem
from asterism.data.sources.tar_index import Member, members
from asterism.errors import UserError
from asterism.extras.words.sources.captioned import Texts
from asterism.inputs import is_text, parse_json

_TEXT = (".txt", ".caption", ".text")
_JSON_KEYS = ("captions", "caption", "text")
_MOST_BYTES = 1 << 20  # of a text


def texts_of_shards(shards: Shards) -> list[Texts]:
    """The texts of every image; lines of a .txt are captions of their own."""
    found: dict[str, tuple[str, ...]] = {}
    for path in shards.files():
        try:
            with path.open("rb") as file:
                found |= {f"{path.stem}/{name}": captions for name, captions in _captions(path, file)}
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror}") from None
    keys = shards.keys()
    without = [key for key in keys if not found.get(key)]
    if without:
        raise UserError(
            f"{shards.name} has {len(without):,} images without a caption, such as {without[0]}; add NAME.txt, or "
            '"caption" in NAME.json, next to each image'
        )
    return [Texts(found[key]) for key in keys]


def _captions(path: Path, file: BinaryIO) -> Iterator[tuple[str, tuple[str, ...]]]:
    for member in members(path, file):
        name = stem(member.name)
        kind = member.name[len(name) :].lower()
        if kind in _TEXT:
            lines = (line.strip() for line in _content(path, file, member).splitlines())
            yield name, tuple(line for line in lines if line)
        elif kind == ".json":
            try:
                values = parse_json(_content(path, file, member))
            except ValueError as error:
                raise UserError(f"{path}: {member.name} is not valid JSON: {error}") from None
            given = (
                next((values[key] for key in _JSON_KEYS if key in values), None) if isinstance(values, dict) else None
            )
            if given is not None:
                listed = [str(text) for text in (given if isinstance(given, list) else [given])]
                if not all(map(is_text, listed)):
                    raise UserError(f"{path}: {member.name} has a caption with an invalid character; write it again")
                yield name, tuple(text.strip() for text in listed if text.strip())


def _content(path: Path, file: BinaryIO, member: Member) -> str:
    if member.size > _MOST_BYTES:
        raise UserError(f"{path}: {member.name} has {member.size:,} bytes; a caption has at most {_MOST_BYTES:,}")
    file.seek(member.offset)
    return file.read(member.size).decode("utf-8", "replace")
