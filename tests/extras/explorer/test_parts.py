"""Layouts, neighbourhoods, labels and jobs against slow loops."""

from pathlib import Path

import pytest
import torch
from torch.nn.functional import normalize, one_hot

from asterism.extras.explorer import layouts
from asterism.extras.explorer.approximate import ExactSearch
from asterism.extras.explorer.collection import collection_of_index
from asterism.extras.explorer.labelling import class_scores, leave_one_out
from asterism.extras.explorer.neighbourhood import Neighbourhood, clusters, neighbourhood
from tests.concept_samples import concept_encoder, write_photos


def unit_rows(count: int, dim: int = 8, seed: int = 0) -> torch.Tensor:
    return normalize(torch.randn(count, dim, generator=torch.Generator().manual_seed(seed)), dim=1)


def test_leaving_one_out_is_fitting_without_it() -> None:
    """The closed form of ridge regression, against one fit per image."""
    vectors, labels = unit_rows(12), torch.arange(12) % 3
    correct = 0
    for left in range(12):
        others = torch.tensor([i for i in range(12) if i != left])
        X, Y = vectors[others].double(), 2 * one_hot(labels[others], 3).double() - 1
        weights = torch.linalg.solve(X.T @ X + 0.1 * torch.eye(8, dtype=torch.float64), X.T @ Y)
        correct += int((vectors[left].double() @ weights).argmax() == labels[left])
    assert leave_one_out(vectors, labels).linear == pytest.approx(100 * correct / 12)


def test_the_vote_never_sees_the_image_itself() -> None:
    vectors, labels = torch.eye(4), torch.tensor([0, 0, 1, 1])
    assert leave_one_out(torch.eye(4)[[0, 1]].repeat(2, 1), torch.tensor([0, 0, 1, 1])).knn == 0.0
    assert leave_one_out(vectors, torch.zeros(4, dtype=torch.int64)).knn is None
    close = torch.stack([vectors[0], vectors[0], vectors[2], vectors[2]])
    assert leave_one_out(close, labels).knn == 100.0


def test_class_scores_are_ridge_regression() -> None:
    vectors, labelled, labels = unit_rows(30), torch.tensor([3, 4, 9, 20]), torch.tensor([0, 1, 1, 0])
    X, Y = vectors[labelled], 2 * one_hot(labels, 2).float() - 1
    weights = torch.linalg.solve(X.T @ X + 0.1 * torch.eye(8), X.T @ Y)
    torch.testing.assert_close(class_scores(vectors, labelled, labels, 2), vectors @ weights, atol=1e-5, rtol=1e-4)


def test_neighbours_never_include_the_image() -> None:
    vectors = unit_rows(40)
    vectors[7] = vectors[3]  # a copy
    found = neighbourhood(vectors, ExactSearch(vectors))
    for row in range(40):
        similarity = (vectors @ vectors[row]).clone()
        similarity[row] = -2
        expected = similarity.topk(10)
        assert row not in found.rows[row]
        torch.testing.assert_close(found.similarity[row], expected.values)
    assert found.duplicates(0.999, 5) == [[(3, pytest.approx(1.0)), (7, pytest.approx(1.0))]]


def test_duplicates_are_connected_groups() -> None:
    rows = torch.tensor([[1], [2], [1], [4], [3]])
    found = Neighbourhood(torch.tensor([[0.9], [0.95], [0.95], [0.99], [0.99]]), rows)
    assert [[row for row, _ in group] for group in found.duplicates(0.9, 9)] == [[3, 4], [0, 1, 2]]
    assert [[row for row, _ in group] for group in found.duplicates(0.94, 9)] == [[3, 4], [1, 2]]


def test_clusters_find_separate_groups() -> None:
    centres = torch.eye(6)[:3]
    vectors = normalize(centres.repeat_interleave(torch.tensor([5, 9, 7]), 0) + 0.1 * unit_rows(21, 6), dim=1)
    found = clusters(vectors, 3)
    assert found.of.tolist() == [2] * 5 + [0] * 9 + [1] * 7, "the largest is cluster 0"
    typical = found.typical(0, 3)
    members = vectors[5:14]
    centre = normalize(members.mean(0), dim=0)
    assert typical[0][0] == 5 + int((members @ centre).argmax())


def test_points_outside_the_sample_are_placed_among_their_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(layouts._SAMPLE, "tsne", 20)
    groups = normalize(torch.eye(8)[:2].repeat(30, 1) + 0.05 * unit_rows(60), dim=1)
    placed = layouts.positions(groups, "tsne")
    assert placed.shape == (60, 2)
    first, second = placed[0::2], placed[1::2]
    within = max(torch.cdist(first, first).max(), torch.cdist(second, second).max())
    assert torch.cdist(first, second).min() > 0.1 * within


def test_an_index_gives_the_same_collection(tmp_path: Path) -> None:
    from asterism import api

    encoder = concept_encoder()
    write_photos(tmp_path / "photos")
    api.embed(encoder, tmp_path / "photos", tmp_path / "e.parquet")
    found = collection_of_index(tmp_path / "e.parquet", None, encoder)
    assert (len(found), found.tokens, found.classes) == (12, 3, ["blue", "green", "red"])
    expected = normalize(encoder.encode(found.image(7)).cls, dim=1)[0]
    torch.testing.assert_close(found.vectors[7], expected)
    assert found.labels == [0] * 4 + [1] * 4 + [2] * 4
