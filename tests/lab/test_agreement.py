import math

import torch

from lab.mechanisms.agreement import chance_of_equals, group_counts, same_share


def test_counts_leave_out_what_is_unknown() -> None:
    counts = group_counts(torch.tensor([0, 0, 1, 1]), torch.tensor([1, 1, 0, -1]), 3, 2)
    assert counts.tolist() == [[0, 2], [1, 0], [0, 0]]


def test_pairs_are_compared_where_both_are_known_and_chosen() -> None:
    first, second = torch.tensor([0, 1, 2, -1, 3]), torch.tensor([0, 2, 2, -1, 3])
    assert same_share(first, second, torch.tensor([True, True, True, True, False])) == 2 / 3
    assert math.isnan(same_share(first, second, torch.zeros(5, dtype=torch.bool)))


def test_chance_is_the_share_of_equal_pairs() -> None:
    first, second = torch.tensor([0, 0, 1, -1]), torch.tensor([0, 1, 1, 2])
    pairs = [a == b for a in (0, 0, 1) for b in (0, 1, 1, 2)]
    assert math.isclose(chance_of_equals(first, second), sum(pairs) / len(pairs))
