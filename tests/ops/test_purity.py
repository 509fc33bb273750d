import math

import torch

from asterism.ops.purity import chance_of_equals, effective_count, group_counts, largest_share, purity, same_share


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


def test_counts_leave_out_what_is_unknown() -> None:
    counts = group_counts(torch.tensor([0, 0, 1, 1]), torch.tensor([1, 1, 0, -1]), 3, 2)
    assert counts.tolist() == [[0, 2], [1, 0], [0, 0]]


def test_effective_count_is_one_for_one_group_and_all_for_equal_use() -> None:
    assert math.isclose(effective_count(torch.tensor([0.0, 7.0, 0.0])).item(), 1.0)
    assert math.isclose(effective_count(torch.full((5,), 2.0)).item(), 5.0, rel_tol=1e-6)
    half = effective_count(torch.tensor([0.5, 0.25, 0.25])).item()
    assert math.isclose(half, 2**1.5, rel_tol=1e-6)


def test_pairs_are_compared_where_both_are_known_and_chosen() -> None:
    first, second = torch.tensor([0, 1, 2, -1, 3]), torch.tensor([0, 2, 2, -1, 3])
    assert same_share(first, second, torch.tensor([True, True, True, True, False])) == 2 / 3
    assert math.isnan(same_share(first, second, torch.zeros(5, dtype=torch.bool)))


def test_chance_is_the_share_of_equal_pairs() -> None:
    first, second = torch.tensor([0, 0, 1, -1]), torch.tensor([0, 1, 1, 2])
    pairs = [a == b for a in (0, 0, 1) for b in (0, 1, 1, 2)]
    assert math.isclose(chance_of_equals(first, second), sum(pairs) / len(pairs))
