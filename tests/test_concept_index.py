from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

import asterism
from asterism import concept_index, embeddings
from asterism.concept_index import ConceptIndex
from asterism.errors import UserError
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
    monkeypatch.setattr(concept_index, "_PART", 5)
    encoder = concept_encoder()
    path = asterism.embed(encoder, photos, tmp_path / name, batch_size=5).path
    index = ConceptIndex(path, 16)
    files = [photos / key for key in index.keys]
    features = encoder.encode(files)
    query = features.sparse[7]
    found = index.nearest(query, 4, without=[index.keys[7], index.keys[2]])
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
    index = ConceptIndex(asterism.embed(concept_encoder(), "photos", "x.parquet").path, 16)
    monkeypatch.chdir(photos)  # the file tells where they are, wherever one works
    images = index.open_images()
    assert [images[row].key for row in range(11)] == index.keys
    moved = photos.rename(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="no such file or folder"):
        index.open_images()
    assert index.open_images(str(moved))[10].key == "red/003.png"


def test_images_that_changed_are_refused(photos: Path, tmp_path: Path) -> None:
    index = ConceptIndex(asterism.embed(concept_encoder(), photos, tmp_path / "x.npz").path, 16)
    (photos / "green" / "001.png").unlink()
    with pytest.raises(UserError, match=r"are not those that .* was made of"):
        index.open_images()


def test_fewer_images_than_asked_for(photos: Path, tmp_path: Path) -> None:
    index = ConceptIndex(asterism.embed(concept_encoder(), photos / "red", tmp_path / "x.npz").path, 16)
    assert index.nearest(torch.randn(2, 16), 9, without=[index.keys[0]]).image.shape == (2, 3)


def test_files_that_cannot_serve_are_named(photos: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there is no index .*; make it by `asterism embed"):
        ConceptIndex(tmp_path / "x.parquet", 16)
    for name in ("x.parquet", "x.npz"):
        (tmp_path / name).write_bytes(b"nothing of use")
        with pytest.raises(UserError, match="cannot be read as an index"):
            ConceptIndex(tmp_path / name, 16)
    (tmp_path / "x.csv").touch()
    with pytest.raises(UserError, match=r"give a \.parquet or \.npz file"):
        ConceptIndex(tmp_path / "x.csv", 16)
    asterism.embed(small_encoder(), photos, tmp_path / "plain.npz")
    with pytest.raises(UserError, match="holds no concepts: it was made by Encoder"):
        ConceptIndex(tmp_path / "plain.npz", 16)
    asterism.embed(concept_encoder(dim=24), photos, tmp_path / "wide.parquet")
    with pytest.raises(UserError, match="concepts of 24 numbers, made by ConceptEncoder, but this model's have 16"):
        ConceptIndex(tmp_path / "wide.parquet", 16)
