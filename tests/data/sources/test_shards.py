import errno
import io
import os
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

from asterism import inputs
from asterism.data.sources import shards as module
from asterism.data.sources.shards import Shards, open_shards
from asterism.data.sources.source import Source
from asterism.data.sources.splits import UnknownSplit
from asterism.errors import UserError
from asterism.images.bad_image import BadImage
from tests.data.pictures import age, encoded, picture


def write_tar(path: Path, contents: dict[str, bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, content in contents.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def samples(*numbers: int) -> dict[str, bytes]:
    """Pictures, each with its last digit as the class number."""
    contents = {}
    for number in numbers:
        contents[f"{number:04}.png"] = encoded(number)
        contents[f"{number:04}.cls"] = f"{number % 10}\n".encode()
    return contents


def test_samples_of_several_shards(tmp_path: Path) -> None:
    write_tar(tmp_path / "set-train-0000.tar", samples(11, 12))
    write_tar(tmp_path / "set-train-0001.tar", samples(20))
    source = open_shards(tmp_path)
    assert isinstance(source, Source)
    assert [source[i].key for i in range(3)] == ["set-train-0000/0011", "set-train-0000/0012", "set-train-0001/0020"]
    assert [source.label(i) for i in range(3)] == [source[i].label for i in range(3)] == [1, 2, 0]
    assert source.classes == ["0", "1", "2"]
    for i, number in enumerate((11, 12, 20)):
        assert np.array_equal(source[i].image.permute(1, 2, 0).numpy(), np.array(picture(number)))
    for index in (-1, 3):
        with pytest.raises(IndexError):
            source[index]


def test_splits(tmp_path: Path) -> None:
    write_tar(tmp_path / "train.tar", samples(1, 2))
    write_tar(tmp_path / "test.tar", samples(3))
    assert (len(open_shards(tmp_path)), len(open_shards(tmp_path, "val"))) == (2, 1)
    assert open_shards(tmp_path, "test").name == f"{tmp_path.name}/test"
    assert len(open_shards(tmp_path, "all")) == 3
    with pytest.raises(UnknownSplit, match="test, train"):
        open_shards(tmp_path, "extra")
    assert len(open_shards(tmp_path / "train.tar")) == 2
    assert len(open_shards(tmp_path / "train.tar", "train")) == 2
    with pytest.raises(UserError, match="single file"):
        open_shards(tmp_path / "train.tar", "test")


def test_the_image_and_the_label_of_a_sample(tmp_path: Path) -> None:
    contents = {
        "d/1.json": b"{}",
        "d/1.mask.png": encoded(90),
        "d/1.png": encoded(1),
        "d/1.cls": b"4",
        "e/1.jpeg": encoded(2, "JPEG"),
        "e/1.cls.txt": b"3",
        "readme.txt": b"no image",
        "f.x/2.PNG": encoded(3),
        "f.x/2.cls": b"0",
    }
    source = Shards([write_tar(tmp_path / "a.tar", contents)], "a")
    assert [source[i].key for i in range(len(source))] == ["a/d/1", "a/e/1", "a/f.x/2"]
    assert [source.label(i) for i in range(3)] == [4, 3, 0]
    assert np.array_equal(source[0].image.permute(1, 2, 0).numpy(), np.array(picture(1)))


@pytest.mark.parametrize("label", [None, b"cat", b"", b"-1"])
def test_without_a_class_number_there_are_no_labels(tmp_path: Path, label: bytes | None) -> None:
    contents = samples(1) | {"0002.png": encoded(2)} | ({} if label is None else {"0002.cls": label})
    source = Shards([write_tar(tmp_path / "a.tar", contents)], "a")
    assert source.classes is None
    assert source.label(0) is source[0].label is None


@pytest.mark.parametrize("label", [b"99999999999", b"9" * 40, str(2**63).encode()])
def test_a_huge_class_number_is_refused_before_its_classes_are_named(tmp_path: Path, label: bytes) -> None:
    with pytest.raises(UserError, match="number the classes from 0 to"):
        open_shards(write_tar(tmp_path / "a.tar", samples(1) | {"0002.png": encoded(2), "0002.cls": label}))


def test_class_names(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", samples(0, 1))
    (tmp_path / "classes.txt").write_text("n01\tcat\nn02\tdog\n", encoding="utf-8")
    assert open_shards(tmp_path / "a.tar").classes == ["cat", "dog"]
    (tmp_path / "classes.txt").write_text("cat\n", encoding="utf-8")
    with pytest.raises(UserError, match="names 1 classes"):
        open_shards(tmp_path / "a.tar")


def test_bad_images(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", {"a.png": encoded(0)[:50], "b.png": encoded(1), "c.png": encoded(2)})
    source = open_shards(path)
    with pytest.raises(BadImage) as caught:
        source[0]
    assert caught.value.key == "a/a"
    os.truncate(path, int(source._index.offset[2]) + 5)
    source[1]
    with pytest.raises(BadImage, match="ends inside"):
        source[2]
    path.unlink()
    with pytest.raises(BadImage, match="No such file"):
        pickle.loads(pickle.dumps(source))[1]


@pytest.mark.parametrize(("failures", "ends"), [(2, False), (3, True)])
def test_a_failing_disk_is_tried_again_and_never_skips_an_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: int, ends: bool
) -> None:
    monkeypatch.setattr(inputs, "_WAITS", (0.0, 0.0))
    shards = Shards([write_tar(tmp_path / "a.tar", samples(0, 1))], "a")
    left, real = [errno.ESTALE] * failures, os.pread

    def failing(handle: int, size: int, offset: int) -> bytes:
        if left:
            raise OSError(left.pop(), "failed")
        return real(handle, size, offset)

    monkeypatch.setattr(os, "pread", failing)
    if ends:
        with pytest.raises(UserError, match=r"a\.tar.*run the command again"):
            shards[0]
    else:
        assert shards[0].image.shape[0] == 3


def stored_indices() -> list[Path]:
    return list((Path(os.environ["XDG_CACHE_HOME"]) / "asterism" / "shards").glob("*.npz"))


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts how often an index is built."""
    calls: list[int] = []
    real = module._build
    monkeypatch.setattr(module, "_build", lambda files: calls.append(1) or real(files))
    return calls


def test_the_index_is_built_once(tmp_path: Path, builds: list[int]) -> None:
    write_tar(tmp_path / "a.tar", samples(1, 2, 3))
    age(tmp_path)
    first, again = open_shards(tmp_path / "a.tar"), open_shards(tmp_path / "a.tar")
    assert len(builds) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["a.tar"]  # nothing is written next to the data
    assert stored_indices()
    assert first.fingerprint == again.fingerprint
    assert [again.label(i) for i in range(3)] == [1, 2, 3]
    assert torch.equal(again[2].image, first[2].image)


@pytest.mark.parametrize("change", ["size", "time", "recent", "broken"])
def test_the_index_is_rebuilt_when_a_file_changes(tmp_path: Path, builds: list[int], change: str) -> None:
    path = write_tar(tmp_path / "a.tar", samples(1))
    if change != "recent":  # an index of a file that has just been written is not trusted
        age(tmp_path)
    open_shards(path)
    before = path.stat()
    if change == "size":
        write_tar(path, samples(1, 2, 3, 4, 5, 6, 7, 8, 9))
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert path.stat().st_size != before.st_size
    elif change == "time":
        write_tar(path, samples(2))
        assert path.stat().st_size == before.st_size
    elif change == "broken":
        for index in stored_indices():
            index.write_bytes(b"nonsense")
    source = open_shards(path)
    assert len(builds) == 2
    assert source[0].key == ("a/0002" if change == "time" else "a/0001")
    assert len(source) == (9 if change == "size" else 1)


def test_fingerprints(tmp_path: Path) -> None:
    one = open_shards(write_tar(tmp_path / "1" / "a.tar", samples(1, 2))).fingerprint
    assert open_shards(write_tar(tmp_path / "2" / "a.tar", samples(1, 2))).fingerprint == one
    relabelled = samples(1, 2) | {"0002.cls": b"7"}
    assert open_shards(write_tar(tmp_path / "3" / "a.tar", relabelled)).fingerprint != one
    redrawn = samples(1, 2) | {"0002.png": encoded(2, size=(20, 20))}
    assert open_shards(write_tar(tmp_path / "4" / "a.tar", redrawn)).fingerprint != one


def test_more_shards_than_open_file_handles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module._Handles, "_LIMIT", 2)
    for number in range(5):
        write_tar(tmp_path / f"{number}.tar", samples(number))
    source = open_shards(tmp_path)
    for index in (0, 1, 2, 3, 4, 0, 4, 1):
        assert np.array_equal(source[index].image.permute(1, 2, 0).numpy(), np.array(picture(index)))
        assert len(source._handles._open) <= 2
