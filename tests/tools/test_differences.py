"""How exports are compared: numbers exactly, ties of labels and detections with a little tolerance."""

import math

import pytest
import torch
from torch import Tensor

from asterism.tools.export.export import largest, largest_difference


def test_numbers() -> None:
    ours = {"cls": torch.zeros(2, 3), "logits": torch.tensor([100.0, 1.0])}
    theirs = {"cls": torch.tensor([[0, 0, 0.5], [0, 0, 0]]), "logits": torch.tensor([100.0, 3.0])}
    assert largest_difference(ours, theirs) == 0.5
    assert largest_difference(ours, {"logits": theirs["logits"]}) == pytest.approx(0.02)
    assert math.isnan(largest_difference(ours, {"logits": ours["logits"], "cls": torch.full((2, 3), math.nan)}))
    assert math.isnan(largest([0.1, math.nan, 0.2]))


def test_a_few_labels_may_differ() -> None:
    ours = torch.zeros(1, 10, 20, dtype=torch.int64)
    theirs = ours.clone()
    theirs[0, 0, :2] = 1
    assert largest_difference({"labels": ours}, {"labels": theirs}) == 0
    theirs[0, 1] = 1
    assert largest_difference({"labels": ours}, {"labels": theirs}) == 1


def table() -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(0)
    corners = 50 * torch.rand(1, 6, 2, generator=draw)
    scores = torch.tensor([[0.9, 0.7, 0.7, 0.5, 0.4, 0.0]])
    return {
        "boxes": torch.cat([corners, corners + 50], dim=2),
        "scores": scores,
        "labels": torch.tensor([[0, 1, 0, 2, 1, -1]]),
        "masks": torch.rand(1, 6, 4, 4, generator=draw),
    }


def test_detections_of_the_same_score_may_change_places() -> None:
    ours = table()
    order = torch.tensor([0, 2, 1, 3, 4, 5])
    assert largest_difference(ours, {name: output[:, order] for name, output in ours.items()}) == 0


@pytest.mark.parametrize(("name", "change"), [("boxes", 10.0), ("scores", 0.1), ("labels", 1), ("masks", 0.1)])
def test_another_detection_is_noticed(name: str, change: float) -> None:
    ours = table()
    theirs = {key: output.clone() for key, output in ours.items()}
    theirs[name][0, 3] += change
    assert largest_difference(ours, theirs) > 0.05


def test_missing_detections_are_noticed() -> None:
    ours = table()
    theirs = {key: output.clone() for key, output in ours.items()}
    theirs["scores"][0, 4] = 0
    assert largest_difference(ours, theirs) == 1
