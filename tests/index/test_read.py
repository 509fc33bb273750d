from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

import asterism
from asterism.errors import UserError
from asterism.index import read
from asterism.index import write as embeddings
from asterism.index.images import open_images
from asterism.index.read import open_index
from asterism.index.search import nearest_concepts
from tests.concept_samples import concept_encoder, write_photos
from tests.evals.samples import small_encoder


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return write_photos(tmp_path / "photos")


@pytest.mark.parametrize("name", ["x.parquet", "x.npz"])
def test_nearest_images_of_a_single_concept(
    photos: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embeddings, "_ROW_GROUP_BYTES", 1500)  # several groups
    monkeypatch.setattr(read, "_BYTES", 5 * 3 * 16 * 4)  # five images at a time
    encoder = concept_encoder()
    path = asterism.embed(encoder, photos, tmp_path / name, batch_size=5).path
    index = open_index(path, encoder)
    files = [photos / key for key in index.keys]
    features = encoder.encode(files)
    query = features.sparse[7]
    found = nearest_concepts(index, query, 4, without=[index.keys[7], index.keys[2]])
    for token in range(3):
        cosines = F.cosine_similarity(features.sparse, query[token], dim=-1)
        cosines[[7, 2]] = -2
        best, which = cosines.max(dim=1)
        torch.testing.assert_close(found.similarity[token], best.topk(4).values)
        for similarity, image, matched in zip(
            found.similarity[token], found.image[token], found.token[token], strict=True
        ):
            torch.testing.assert_close(similarity, best[image])
            assert which[image] == matched
    maps = index.maps([9, 1, 9])
    assert list(maps) == [1, 9]
    for image, where in maps.items():
        torch.testing.assert_close(where, features.where[image])


def test_images_of_an_index_are_found_again(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (photos / "green" / "001.png").write_bytes(b"cut off")
    monkeypatch.chdir(tmp_path)
    encoder = concept_encoder()
    index = open_index(asterism.embed(encoder, "photos", "x.parquet").path, encoder)
    monkeypatch.chdir(photos)  # the file says where they are, independently of the working directory
    images = open_images(index)
    assert [images[row].key for row in range(11)] == index.keys
    moved = photos.rename(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="no such file or folder"):
        open_images(index)
    assert open_images(index, str(moved))[10].key == "red/003.png"


def test_changed_images_are_rejected(photos: Path, tmp_path: Path) -> None:
    encoder = concept_encoder()
    index = open_index(asterism.embed(encoder, photos, tmp_path / "x.npz").path, encoder)
    (photos / "green" / "001.png").unlink()
    with pytest.raises(UserError, match=r"are not those that .* was made from"):
        open_images(index)


def test_unusable_files_are_reported(photos: Path, tmp_path: Path) -> None:
    encoder = concept_encoder()
    with pytest.raises(UserError, match=r"there is no index .*; make it with `asterism embed"):
        open_index(tmp_path / "x.parquet", encoder)
    for name in ("x.parquet", "x.npz"):
        (tmp_path / name).write_bytes(b"garbage")
        with pytest.raises(UserError, match="cannot be read as an index"):
            open_index(tmp_path / name, encoder)
    (tmp_path / "x.csv").touch()
    with pytest.raises(UserError, match=r"give a \.parquet or \.npz file"):
        open_index(tmp_path / "x.csv", encoder)
    plain = small_encoder()
    index = open_index(asterism.embed(plain, photos, tmp_path / "plain.npz").path, plain)
    with pytest.raises(UserError, match="has no concepts: it was made with Encoder"):
        index.concepts()
    asterism.embed(concept_encoder(dim=24), photos, tmp_path / "wide.parquet")
    with pytest.raises(UserError, match=r"was made by another model \(ConceptEncoder\)"):
        open_index(tmp_path / "wide.parquet", encoder)


def test_added_columns(photos: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    arrow = pytest.importorskip("pyarrow")
    encoder = concept_encoder()
    asterism.embed(encoder, photos, tmp_path / "e.parquet")
    table = parquet.read_table(tmp_path / "e.parquet")
    table = table.append_column("year", arrow.array([2000 + i for i in range(11)] + [None]))
    table = table.append_column("place", arrow.array(["a", None] * 6)).append_column("tags", arrow.array([["x"]] * 12))
    parquet.write_table(table, tmp_path / "more.parquet")
    columns = open_index(tmp_path / "more.parquet", encoder).columns()
    assert list(columns) == ["year", "place"]
    assert columns["year"][:2] == [2000.0, 2001.0]
    assert columns["year"][11] != columns["year"][11], "a missing number is NaN"
    assert columns["place"][:2] == ["a", ""]
