import io
import tarfile
from pathlib import Path

import pytest

from asterism.data.sources.tar_index import Member, members
from asterism.errors import UserError

NAMES = [
    "a.jpg",
    "folder/" * 3 + "b.png",
    "long" * 30 + "/" + "name" * 15 + ".jpg",  # fits ustar's two fields
    "x" * 300 + "/" + "y" * 200 + ".jpg",  # fits no field
    "ünï/日本語.jpg",
    "empty.txt",
    "z" * 100,  # fills the field to the last byte
]


def build(path: Path, form: int, names: list[str] = NAMES) -> dict[str, bytes]:
    contents = {name: name.encode() * (7 * place) for place, name in enumerate(names)}
    with tarfile.open(path, "w", format=form) as tar:
        folder = tarfile.TarInfo("some-folder")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
        for name, content in contents.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            info.mtime = 1.5 if form == tarfile.PAX_FORMAT else 1
            tar.addfile(info, io.BytesIO(content))
            link = tarfile.TarInfo(f"link to {name}"[:90])
            link.type, link.linkname = tarfile.SYMTYPE, name[:90]
            tar.addfile(link)
    return contents


def read(path: Path) -> list[Member]:
    with path.open("rb") as file:
        return list(members(path, file))


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_every_kind_of_header(tmp_path: Path, form: int) -> None:
    path = tmp_path / "a.tar"
    names = [name for name in NAMES if form != tarfile.USTAR_FORMAT or not name.startswith(("xxx", "ünï"))]
    contents = build(path, form, names)
    data = path.read_bytes()
    found = read(path)
    assert {member.name: data[member.offset : member.offset + member.size] for member in found} == contents
    with tarfile.open(path) as tar:
        assert [(m.name, m.offset_data, m.size) for m in tar if m.isfile()] == [tuple(member) for member in found]


def test_old_headers_and_large_numbers(tmp_path: Path) -> None:
    info = tarfile.TarInfo("old.jpg")
    info.size = 3
    header = bytearray(info.tobuf(tarfile.USTAR_FORMAT))
    header[257:265] = bytes(8)
    header[124:136] = b"\x80" + (3).to_bytes(11)
    header[148:156] = b"%06o\0 " % (sum(header[:148]) + sum(header[156:]) + 8 * 32)
    (tmp_path / "a.tar").write_bytes(bytes(header) + b"abc".ljust(512, b"\0"))
    assert read(tmp_path / "a.tar") == [Member("old.jpg", 512, 3)]


def test_a_truncated_tar_file(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    build(path, tarfile.GNU_FORMAT)
    path.write_bytes(path.read_bytes()[: read(path)[3].offset + 10])
    with pytest.raises(UserError, match="truncated"):
        read(path)
