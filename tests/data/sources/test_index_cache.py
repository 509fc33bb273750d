import pickle
from pathlib import Path

import numpy as np
import pytest

from asterism.data.sources.index_cache import Names, read_index, settled, write_index

SECOND = 1_000_000_000


def test_a_written_index_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "new" / "index.npz"
    write_index(path, {"a": np.arange(3), "b": np.array("text")})
    arrays = read_index(path)
    assert arrays is not None
    assert arrays["a"].tolist() == [0, 1, 2]
    assert str(arrays["b"]) == "text"
    assert [p.name for p in path.parent.iterdir()] == ["index.npz"]
    assert path.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("content", [b"", b"nonsense", b"PK\x03\x04 half a zip"])
def test_a_broken_index_counts_as_missing(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "index.npz"
    path.write_bytes(content)
    assert read_index(path) is None
    assert read_index(tmp_path / "missing.npz") is None


def test_pickles_are_not_loaded(tmp_path: Path) -> None:
    path = tmp_path / "index.npz"
    np.savez(path, evil=np.array([{"a": 1}], dtype=object))
    assert read_index(path) is None


def test_an_unwritable_folder_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    write_index(tmp_path / "file" / "index.npz", {"a": np.arange(3)})


def test_only_old_stamps_are_settled() -> None:
    now = 1000 * SECOND
    assert settled(np.array([now - 3 * SECOND]), now)
    assert not settled(np.array([now - 3 * SECOND, now - SECOND]), now)


def test_names_are_found_by_number() -> None:
    names = [b"b.png", b"", "ü/日本.jpg".encode(), b"a b", b"\xff\xfe"]
    packed = Names.of(names)
    assert len(packed) == len(names)
    assert [packed[i] for i in range(len(packed))] == names
    again = pickle.loads(pickle.dumps(packed))
    assert [again[i] for i in range(len(again))] == names
