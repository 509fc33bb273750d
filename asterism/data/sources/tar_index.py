"""The offsets of the members of a tar file, found by reading only its headers.

The standard library's reader builds a large object per member, and a set of a million images has two million members.
Plain, ustar, GNU and pax headers are supported.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from asterism.errors import UserError

_BLOCK = 512  # bytes; a header is one block, contents are padded to whole blocks
_REGULAR = b"0\0007"
_ABOUT_OTHERS = b"LKxg"  # long name, long link, pax header for the next member, pax header for all


class Member(NamedTuple):
    """A regular file in a tar file; offset and size in bytes."""

    name: str
    offset: int
    size: int


def members(path: Path, file: BinaryIO) -> Iterator[Member]:
    """Every regular file of an open, uncompressed tar file, in order."""
    end = path.stat().st_size
    position = 0
    extended: dict[str, str] = {}  # from extension headers before the member
    while position < end:
        file.seek(position)
        header = file.read(_BLOCK)
        if header[0] == 0 and not header.strip(b"\0"):  # end-of-archive marker
            return
        name, size, kind = _parse(header, path, position)
        if extended and kind not in _ABOUT_OTHERS:
            size = int(extended.get("size", size))
        offset = position + _BLOCK
        if offset + size > end:
            raise UserError(f"{path} is truncated: {name!r} ends at byte {offset + size:,}, the file at {end:,}")
        position = offset + (size + _BLOCK - 1) // _BLOCK * _BLOCK
        if kind in _REGULAR:
            yield Member(extended.get("path", name), offset, size)
        if kind == b"L":
            extended["path"] = file.read(size).rstrip(b"\0").decode("utf-8", "backslashreplace")
        elif kind == b"x":
            extended.update(_pax_records(file.read(size), path))
        elif kind not in _ABOUT_OTHERS:
            extended = {}


def _parse(header: bytes, path: Path, position: int) -> tuple[str, int, bytes]:
    """Name, size and kind."""
    magic = header[257:263]
    try:
        if not magic.startswith(b"ustar"):
            _check_sum(header)  # very old tar files have no magic number
        size = _number(header[124:136])
    except ValueError:
        what = "is damaged" if position else "is not an uncompressed tar file"
        raise UserError(f"{path} {what}: no member header at byte {position:,}") from None
    name = header[:100].rstrip(b"\0")
    if header[345] and magic == b"ustar\0":
        name = header[345:500].rstrip(b"\0") + b"/" + name
    return name.decode("utf-8", "backslashreplace"), size, header[156:157]


def _check_sum(header: bytes) -> None:
    """Check the sum of all bytes, where the checksum field itself counts as spaces."""
    if len(header) < _BLOCK or sum(header) - sum(header[148:156]) + 8 * 32 != _number(header[148:156]):
        raise ValueError("not a header")


def _number(field: bytes) -> int:
    """Parse octal digits; GNU writes larger numbers in base 256 with the highest bit set."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:])
    return int(field.strip(b"\0 ") or b"0", 8)


def _pax_records(content: bytes, path: Path) -> dict[str, str]:
    """Parse records `length key=value newline`, where length counts the whole record."""
    records = {}
    while content:
        digits, _, rest = content.partition(b" ")
        length = int(digits) if digits.isdigit() else 0
        if length <= len(digits):
            raise UserError(f"{path} is damaged: it has a pax header that cannot be read")
        key, _, value = rest[: length - len(digits) - 1].rstrip(b"\n").partition(b"=")
        if key in (b"path", b"size"):
            records[key.decode()] = value.decode("utf-8", "backslashreplace")
        content = content[length:]
    return records
