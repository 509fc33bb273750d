"""Objects against true classes, and views clustered separately that are matched by their means."""

from pathlib import Path

import pytest
import torch

from lab.mechanisms.cribo_objects import GROUPINGS, agreement, measure_objects, renumbered
from tests.train.tiny import pretrain, tiny_recipe


def test_objects_that_are_things_are_pure_and_the_same_in_both_views() -> None:
    labels = torch.tensor([[[0, 0, 1, 1]], [[1, 0, 1, 0]]])
    segments = torch.tensor([[[4, 4, 2, 2]], [[2, 4, 2, 4]]])
    assert agreement(labels, segments, 2) == pytest.approx({"purity": 100, "same": 100})


def test_objects_that_mix_things_are_not() -> None:
    labels = torch.tensor([[[0, 0, 0, 1]], [[0, 1, 1, 1]]])
    segments = torch.tensor([[[4, 4, 4, 2]], [[2, 4, 4, 2]]])
    # object 0: 4 4 4 2, three of four; object 1: 2 4 4 2, half of them
    found = agreement(labels, segments, 2)
    assert found["purity"] == pytest.approx(100 * (3 + 2) / 8)
    assert found["same"] == pytest.approx(0)  # object 0: 4 and 2; object 1: 2 and 4


def test_unknown_patches_and_objects_of_one_view_do_not_count() -> None:
    labels = torch.tensor([[[0, 0, 1, -1]], [[0, 0, 0, 0]]])
    segments = torch.tensor([[[4, -1, 2, 3]], [[4, 4, -1, 4]]])
    assert agreement(labels, segments, 2) == pytest.approx({"purity": 100, "same": 100})


def test_clusters_of_the_second_view_take_the_numbers_of_their_partners() -> None:
    first = torch.eye(3)[None]
    second = torch.eye(3)[None, [2, 0, 1]]  # its cluster 0 is the first view's 2
    assert renumbered(torch.tensor([[0, 1, 2, 0]]), first, second).tolist() == [[2, 0, 1, 2]]


def test_the_objects_of_a_run_are_measured(tmp_path: Path) -> None:
    recipe = tiny_recipe("cribo", trainer={"steps": 2}, data={"path": "scenes:size=16,count=40", "workers": 0})
    found = measure_objects(pretrain(recipe, tmp_path / "run"), "scenes:size=16,count=40", batches=2, batch_size=8)
    assert set(found) == {f"{name}, {measure}" for name in GROUPINGS for measure in ("purity", "same")}
    assert all(0 <= value <= 100 for value in found.values())
