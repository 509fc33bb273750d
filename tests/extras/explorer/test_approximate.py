"""Approximate search against the exact one, and the columns that the explorer reads."""

from pathlib import Path

import pytest
import torch
from torch.nn.functional import normalize

from asterism import api
from asterism.errors import UserError
from asterism.extras.explorer.approximate import ApproximateSearch, ExactSearch, build_approximate
from asterism.extras.explorer.mapped import mapped_index, patches_of
from asterism.index.read import open_index
from tests.concept_samples import concept_encoder, write_photos

pytest.importorskip("faiss", reason="faiss is not installed")


def rows(count: int, seed: int = 0) -> torch.Tensor:
    drawn = torch.Generator().manual_seed(seed)
    centres = torch.randn(20, 16, generator=torch.Generator().manual_seed(9))
    return normalize(centres[torch.arange(count) % 20] + 0.4 * torch.randn(count, 16, generator=drawn), dim=1)


def test_exact_search_is_a_sort() -> None:
    vectors, queries = rows(50), rows(4, seed=1)
    similarity, found = ExactSearch(vectors).nearest(queries, 9)
    expected = (queries @ vectors.T).topk(9, dim=1)
    torch.testing.assert_close(similarity, expected.values)
    assert torch.equal(found, expected.indices)
    assert ExactSearch(vectors[:3]).nearest(queries, 9)[1].shape == (4, 3)


def test_recall(tmp_path: Path) -> None:
    vectors, queries = rows(3000), rows(50, seed=1)
    build_approximate(vectors, tmp_path / "x.faiss")
    similarity, found = ApproximateSearch(tmp_path / "x.faiss", 16, 3000).nearest(queries, 10)
    _, truth = ExactSearch(vectors).nearest(queries, 10)
    hits = sum(len(set(a) & set(b)) for a, b in zip(found.tolist(), truth.tolist(), strict=True))
    assert hits / truth.numel() > 0.9
    own = torch.einsum("qkd,qd->qk", vectors[found], queries)
    torch.testing.assert_close(similarity, own, atol=1e-4, rtol=1e-4)
    assert [file.name for file in tmp_path.iterdir()] == ["x.faiss"]


def test_a_file_of_other_vectors_is_refused(tmp_path: Path) -> None:
    build_approximate(rows(200), tmp_path / "x.faiss")
    with pytest.raises(UserError, match="belongs to other vectors"):
        ApproximateSearch(tmp_path / "x.faiss", 16, 201)
    (tmp_path / "x.faiss").write_bytes(b"damaged")
    with pytest.raises(UserError, match="built again"):
        ApproximateSearch(tmp_path / "x.faiss", 16, 200)


@pytest.mark.parametrize("ending", ["parquet", "npz"])
def test_mapped_vectors_labels_and_patches(ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asterism.index.read._BYTES", 4 * 48 * 5)  # columns come in parts of different lengths
    encoder = concept_encoder()
    write_photos(tmp_path / "photos")
    path = tmp_path / f"e.{ending}"
    api.embed(encoder, tmp_path / "photos", path, dense=True)
    index = open_index(path, encoder)
    found = mapped_index(index)
    features = encoder.encode([str(tmp_path / "photos" / key) for key in index.keys])
    assert found.keys == index.keys
    torch.testing.assert_close(found.arrays["vectors"], normalize(features.cls, dim=1), atol=1e-5, rtol=1e-4)
    assert features.sparse is not None
    torch.testing.assert_close(
        found.arrays["concepts"], normalize(features.sparse, dim=2).flatten(0, 1), atol=1e-5, rtol=1e-4
    )
    assert index.labels() == [0] * 4 + [1] * 4 + [2] * 4
    chosen = list(patches_of(index, [1, 6, 11]))
    expected = normalize(features.patches[[1, 6, 11]], dim=2)
    torch.testing.assert_close(torch.stack(chosen), expected, atol=1e-5, rtol=1e-4)
