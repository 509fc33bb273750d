import math

import torch

from asterism.ops.purity import effective_count, largest_share, purity


def test_groups_of_one_class_are_pure_whatever_their_size() -> None:
    mass = torch.tensor([[3.0, 0.0], [0.0, 1.0], [0.0, 2.0]])
    assert purity(mass).item() == 1.0
    assert largest_share(mass).item() == 0.5


def test_groups_that_know_nothing_reach_the_share_of_the_largest_class() -> None:
    mass = torch.tensor([[6.0, 2.0], [3.0, 1.0]])
    assert purity(mass).item() == largest_share(mass).item() == 0.75


def test_images_are_measured_one_by_one() -> None:
    mass = torch.stack([torch.eye(2), torch.ones(2, 2)])
    assert purity(mass).tolist() == [1.0, 0.5]


def test_effective_count_is_one_for_one_group_and_all_for_equal_use() -> None:
    assert math.isclose(effective_count(torch.tensor([0.0, 7.0, 0.0])).item(), 1.0)
    assert math.isclose(effective_count(torch.full((5,), 2.0)).item(), 5.0, rel_tol=1e-6)
    half = effective_count(torch.tensor([0.5, 0.25, 0.25])).item()
    assert math.isclose(half, 2**1.5, rel_tol=1e-6)
