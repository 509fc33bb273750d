"""The offsets of the members of a tar file, found by reading only its headers.

The standard library's reader builds a large object per member, and a set of a million images has two million members.
Plain, ustar, GNU and pax headers are supported; sparse members are not.

A damaged file is refused with the position of the damage. Every header has its checksum verified, every size is checked
against the file before anything of that size is read, and every step moves forward, so that no file takes longer than
one pass over its headers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from asterism.errors import UserError
from asterism.inputs import as_text

_BLOCK = 512  # bytes; a header is one block, contents are padded to whole blocks
_REGULAR = b"0\0007"
_ABOUT_OTHERS = b"LKxg"  # long name, long link, pax header for the next member, pax header for all
_SPARSE = b"S"
_MOST_ABOUT = 1 << 20  # bytes of a header about another member; paths are at most 4 kB long
_OCTAL = re.compile(rb"[0-7]{1,12}")


class Member(NamedTuple):
    """A regular file in a tar file; offset and size in bytes."""

    name: str
    offset: int
    size: int


class _Damaged(Exception):
    """What is wrong at the current position."""


def members(path: Path, file: BinaryIO) -> Iterator[Member]:
    """Every regular file of an open, uncompressed tar file, in order."""
    end = path.stat().st_size
    position = 0
    extended: dict[str, str] = {}  # from extension headers before the member
    while position < end:
        try:
            file.seek(position)
            header = file.read(_BLOCK)
            if not header.strip(b"\0"):  # end-of-archive marker
                return
            name, size, kind = _parse(header)
            if extended and kind not in _ABOUT_OTHERS:
                size = _decimal(extended.get("size"), size)
                name = extended.get("path", name)
            offset = position + _BLOCK
            following = offset + (size + _BLOCK - 1) // _BLOCK * _BLOCK
            if following > end:
                raise UserError(f"{path} is truncated: {name!r} ends at byte {offset + size:,}, the file at {end:,}")
            if kind in _SPARSE or "sparse" in extended:
                raise _Damaged(f"{name!r} is stored as a sparse file, which cannot be read; pack it without --sparse")
            if kind in _ABOUT_OTHERS and size > _MOST_ABOUT:
                raise _Damaged(f"a header of {size:,} bytes about another member")
            if kind in (b"L", b"x"):
                content = file.read(size)
                extended.update(_pax_records(content) if kind == b"x" else {"path": _name(content)})
        except _Damaged as error:
            what = "is damaged" if position else "is not an uncompressed tar file"
            raise UserError(f"{path} {what}: {error} at byte {position:,}") from None
        position = following
        if kind in _REGULAR:
            yield Member(name, offset, size)
        if kind not in _ABOUT_OTHERS:
            extended = {}


def _parse(header: bytes) -> tuple[str, int, bytes]:
    """Name, size and kind."""
    if len(header) < _BLOCK or not _has_right_sum(header):
        raise _Damaged("no member header")
    name = _name(header[:100])
    if header[345] and header[257:263] == b"ustar\0":
        name = f"{_name(header[345:500])}/{name}"
    return name, _number(header[124:136]), header[156:157]


def _has_right_sum(header: bytes) -> bool:
    """Whether the sum of all bytes is the stored one; the checksum field itself counts as spaces."""
    try:
        return sum(header) - sum(header[148:156]) + 8 * 32 == _number(header[148:156])
    except _Damaged:
        return False


def _number(field: bytes) -> int:
    """Parse octal digits; GNU writes larger numbers in base 256 with the highest bit set."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:])
    digits = field.strip(b"\0 ")
    if digits and not _OCTAL.fullmatch(digits):
        raise _Damaged("a member header with an impossible size")
    return int(digits or b"0", 8)


def _name(field: bytes) -> str:
    return as_text(field.partition(b"\0")[0])


def _decimal(text: str | None, otherwise: int) -> int:
    if text is None:
        return otherwise
    if not (text.isascii() and text.isdigit() and len(text) <= 19):
        raise _Damaged(f"a pax header with the size {text[:40]!r}")
    return int(text)


def _pax_records(content: bytes) -> dict[str, str]:
    """Parse records `length key=value newline`, where length counts the whole record."""
    records = {}
    while content:
        digits, _, rest = content.partition(b" ")
        length = int(digits) if digits.isdigit() and len(digits) <= 7 else 0
        if not len(digits) < length <= len(content):
            raise _Damaged("a pax header that cannot be read")
        key, _, value = rest[: length - len(digits) - 1].rstrip(b"\n").partition(b"=")
        if key in (b"path", b"size"):
            records[key.decode()] = _name(value)
        elif key.startswith(b"GNU.sparse"):
            records["sparse"] = ""
        content = content[length:]
    return records
