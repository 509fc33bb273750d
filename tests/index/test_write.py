import json
import resource
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from asterism.data import Source, Subset, open_source
from asterism.errors import MissingExtra, UserError
from asterism.index import write as embeddings
from asterism.index.write import Written, check_target, write_embeddings
from asterism.lock import file_lock, owned
from asterism.nn.encoder import Encoder
from asterism.types import Features, Model
from tests.evals.samples import COLOURS, small_encoder, write_colours


class WithConcepts(Encoder):
    """An encoder with concepts and their maps."""

    def forward(self, pixels: Float[Tensor, "b 3 h w"]) -> Features:
        plain = super().forward(pixels)
        where = plain.patches[:, :, :3].softmax(2).mT.unflatten(2, plain.grid)
        return Features(plain.cls, plain.patches, plain.grid, sparse=plain.patches[:, :3], where=where)


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return open_source(str(write_colours(tmp_path / "labelled", 3, size=(16, 16))))


def write(source: Source, target: Path, encoder: Encoder | None = None, dense: bool = False) -> Written:
    return write_embeddings(encoder or small_encoder(), source, target, Model("weights", 7), dense=dense, batch_size=4)


def expected(source: Source) -> Features:
    return small_encoder().encode(torch.stack([source[i].image for i in range(len(source))]))


def column(table: Any, name: str, *shape: int) -> NDArray[np.float32]:
    return table[name].combine_chunks().flatten().to_numpy().reshape(-1, *shape)


def test_parquet_rows(source: Source, tmp_path: Path) -> None:
    written = write(source, tmp_path / "x.parquet")
    table = pyarrow.parquet.read_table(written.path)
    assert table.column_names == ["key", "label", "embedding"]
    assert table["key"].to_pylist() == [source[i].key for i in range(9)]
    assert table["label"].to_pylist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert str(table.schema.field("embedding").type).startswith("fixed_size_list<")
    assert np.allclose(column(table, "embedding", 16), expected(source).cls, atol=1e-5)
    facts = json.loads(table.schema.metadata[b"asterism"])
    assert facts["classes"] == list(COLOURS)
    assert (facts["model"], facts["step"], facts["fingerprint"]) == ("weights", 7, source.fingerprint)
    assert (written.images, written.dim, written.skipped, written.bad_images) == (9, 16, 0, None)


def test_dense_parquet(source: Source, tmp_path: Path) -> None:
    table = pyarrow.parquet.read_table(write(source, tmp_path / "x.parquet", dense=True).path)
    facts = json.loads(table.schema.metadata[b"asterism"])
    assert facts["grid"] == [2, 2]
    assert facts["shapes"] == {"embedding": [16], "patches": [4, 16]}
    assert np.allclose(column(table, "patches", 4, 16), expected(source).patches, atol=1e-5)


class Wide(Encoder):
    """Half a megabyte of tokens per image, of which an index has the class token."""

    def encode(self, images: Any) -> Features:
        tokens = torch.ones(len(images), 1025, 128)
        return Features(cls=tokens[:, 0], patches=tokens[:, 1:], grid=(32, 32))


def test_memory_does_not_grow_with_the_images(source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    statm = Path("/proc/self/statm")
    if not statm.exists():
        pytest.skip("the system does not say how much memory a process holds")
    encoder, write, resident = Wide(small_encoder().backbone), embeddings._Rows.add, list[float]()

    def measured(rows: Any, *words: Any) -> None:
        write(rows, *words)
        resident.append(int(statm.read_text().split()[1]) * resource.getpagesize() / 1e6)

    monkeypatch.setattr(embeddings._Rows, "add", measured)
    many = Subset(source, [0] * 400)
    write_embeddings(encoder, many, tmp_path / "out.parquet", Model("m"), dense=False, batch_size=4)
    assert max(resident) - max(resident[:25]) < 40, "megabytes between 100 and 400 images; all of their tokens have 157"


def test_npz_holds_the_same(source: Source, tmp_path: Path) -> None:
    with np.load(write(source, tmp_path / "x.npz", dense=True).path, allow_pickle=False) as file:
        arrays = dict(file)
    assert set(arrays) == {"keys", "labels", "embeddings", "patches", "metadata"}
    assert arrays["keys"].tolist() == [source[i].key for i in range(9)]
    assert arrays["labels"].tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert np.allclose(arrays["embeddings"], expected(source).cls, atol=1e-5)
    assert np.allclose(arrays["patches"], expected(source).patches, atol=1e-5)
    assert json.loads(str(arrays["metadata"]))["grid"] == [2, 2]


def test_concepts_are_kept(source: Source, tmp_path: Path) -> None:
    encoder = WithConcepts(small_encoder().backbone).eval()
    with np.load(write(source, tmp_path / "x.npz", encoder, dense=True).path) as file:
        assert file["sparse"].shape == (9, 3, 16)
        assert file["where"].shape == (9, 3, 2, 2)
        where = file["where"]
    table = pyarrow.parquet.read_table(write(source, tmp_path / "x.parquet", encoder, dense=True).path)
    assert np.array_equal(column(table, "where", 3, 2, 2), where)


@pytest.mark.parametrize("name", ["x.parquet", "x.npz"])
def test_unreadable_images_are_left_out_and_recorded(tmp_path: Path, name: str) -> None:
    folder = write_colours(tmp_path / "labelled", 3)
    (folder / "green" / "001.png").write_bytes(b"cut off")
    written = write(open_source(str(folder)), tmp_path / name)
    assert (written.images, written.skipped) == (8, 1)
    assert written.bad_images == tmp_path / "x.bad_images.jsonl"
    assert json.loads(written.bad_images.read_text())["key"] == "green/001.png"
    if name.endswith("npz"):
        with np.load(written.path) as file:
            assert len(file["embeddings"]) == len(file["labels"]) == len(file["keys"]) == 8
    else:
        assert pyarrow.parquet.read_table(written.path).num_rows == 8


@pytest.mark.parametrize("name", ["x.parquet", "x.npz"])
def test_a_failure_leaves_no_file(source: Source, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = sorted(tmp_path.iterdir())

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        write(source, tmp_path / name)
    assert sorted(tmp_path.iterdir()) == before


def test_an_index_has_one_writer(source: Source, tmp_path: Path) -> None:
    target = tmp_path / "index.npz"
    with owned(file_lock(target), target):
        with pytest.raises(UserError, match=r"index.npz is being written by this process"):
            check_target(target, overwrite=True)
        with pytest.raises(UserError, match=r"index.npz is being written by this process"):
            write(source, target)
    write(source, target)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["index.npz", "labelled"]


def test_the_missing_parquet_extra_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtra, match=r"pip install 'asterism\[parquet\]'"):
        check_target(tmp_path / "x.parquet", overwrite=False)
    assert check_target(tmp_path / "x.npz", overwrite=False)


def test_without_room_for_the_list_of_bad_images_there_is_no_file_either(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = next((tmp_path / "labelled").rglob("*.png"))
    image.write_bytes(b"cut off")
    full = OSError(28, "No space left on device")

    def fail(*words: Any) -> None:
        raise full

    with monkeypatch.context() as patch:
        patch.setattr(embeddings, "write_text", fail)
        with pytest.raises(OSError, match="No space"):
            write(source, tmp_path / "a.npz")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["labelled"]
    assert write(source, tmp_path / "a.npz").bad_images == tmp_path / "a.bad_images.jsonl"
    image.unlink()
    complete = open_source(str(tmp_path / "labelled"))
    assert write(complete, tmp_path / "a.npz").bad_images is None
    assert not (tmp_path / "a.bad_images.jsonl").exists(), "the list of the file that was replaced"
