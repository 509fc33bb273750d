"""Objects whose features contain their class retrieve it; others only by chance."""

from pathlib import Path

import pytest
import torch

from asterism.nn.object_bank import BankConfig, ObjectBank, StoredObjects
from asterism.ops.random import generator
from lab.mechanisms.cribo_matches import Matches, match_objects, measure_matches, object_classes
from tests.train.tiny import pretrain, tiny_recipe

IMAGES, SLOTS, DIM, CLASSES = 200, 4, 8, 4


def test_features_with_class_information_retrieve_the_class() -> None:
    shares = _matches(signal=10.0).shares()
    assert shares["all"] == shares["cycle"] == pytest.approx(100)
    assert shares["random"] == pytest.approx(100 / CLASSES, abs=2)


def test_features_without_class_information_match_by_chance() -> None:
    shares = _matches(signal=0.0).shares()
    assert shares["all"] == pytest.approx(shares["random"], abs=6)
    assert shares["cycle"] == pytest.approx(shares["random"], abs=20)  # few pairs pass


def test_a_class_can_be_excluded_from_the_queries() -> None:
    matches = Matches(
        own=torch.tensor([0, 0, 1, 2]),
        found=torch.tensor([0, 0, 2, 2]),
        accepted=torch.tensor([True, True, False, True]),
        bank=torch.tensor([0, 0, 1, 2]),
    )
    assert matches.shares()["all"] == pytest.approx(75)
    assert matches.shares(without=0) == pytest.approx({"cycle": 100, "all": 50, "random": 25, "accepted": 50})


def test_an_object_has_the_class_of_most_of_its_patches() -> None:
    labels = torch.tensor([[[0, 0, 1, -1]], [[0, 1, 1, 2]]])  # two views of one image
    segments = torch.tensor([[[3, 3, 0, 1]], [[0, 2, 2, -1]]])
    assert object_classes(labels, segments, 4).tolist() == [[3, 2, -1, -1]]


@pytest.mark.slow
def test_the_matches_of_a_run_are_measured(tmp_path: Path) -> None:
    recipe = tiny_recipe("cribo", trainer={"steps": 2}, data={"path": "scenes:size=16,count=40", "workers": 0})
    matches = measure_matches(pretrain(recipe, tmp_path / "run"), "scenes:size=16,count=40", batches=4, batch_size=8)
    assert len(matches.own) == len(matches.found) == len(matches.accepted) > 0
    assert 0 < matches.shares()["random"] < 100


def _matches(signal: float) -> Matches:
    """Unit noise, plus `signal` in the direction of the class, equal in both views."""
    draw = generator(3)
    classes = torch.randint(CLASSES, (2 * IMAGES, SLOTS), generator=draw)
    rows = torch.randn(2 * IMAGES, SLOTS, DIM, generator=draw) + signal * torch.eye(CLASSES, DIM)[classes]
    rows = rows[:, :, None].expand(-1, -1, 2, -1)
    bank = ObjectBank(BankConfig(images=IMAGES, precision="full"), SLOTS, DIM)
    valid = torch.ones(IMAGES, SLOTS, dtype=torch.bool)
    bank.push(StoredObjects(rows[:IMAGES], valid, classes[:IMAGES], torch.arange(IMAGES), torch.arange(IMAGES)))
    asking = rows[IMAGES:].permute(2, 0, 1, 3).flatten(1, 2)
    image = torch.arange(IMAGES, 2 * IMAGES).repeat_interleave(SLOTS)
    return match_objects(bank, asking, image, classes[IMAGES:].flatten())
