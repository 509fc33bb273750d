import math

import pytest
import torch

from asterism.extras.papers.mean_average_precision import average_precision, retrieval_scores


def test_average_precision_uses_the_trapezoidal_rule() -> None:
    ranks = torch.tensor([0, 3])
    # before the second positive one of three is correct, with it two of four
    assert average_precision(ranks) == pytest.approx(((1 + 1) / 2 + (1 / 3 + 2 / 4) / 2) / 2)
    assert average_precision(torch.arange(4)) == 1.0


def test_ignored_images_are_removed_from_the_ranking() -> None:
    ranking = torch.tensor([[4, 2, 0, 1, 3]])
    found = retrieval_scores(ranking, [torch.tensor([2])], [torch.tensor([4])], [1, 3])
    assert found.map == 1.0
    assert found.mean_precision.tolist() == [1.0, 1.0]  # the ranking ends with its last positive


def test_queries_without_positives_are_left_out() -> None:
    rankings, none = torch.tensor([[0, 1], [1, 0]]), torch.tensor([], dtype=torch.int64)
    found = retrieval_scores(rankings, [torch.tensor([1]), none], [none, none], [1])
    assert found.ap.isnan().tolist() == [False, True]
    assert found.map == pytest.approx(0.25)
    assert math.isnan(retrieval_scores(rankings[:1], [none], [none], [1]).map)
