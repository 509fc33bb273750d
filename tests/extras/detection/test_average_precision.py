"""COCO's average precision: its rules, values that pycocotools gave, and over processes."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from asterism.extras.detection.average_precision import AveragePrecision
from asterism.extras.detection.objects import Detections, TrueObjects, found_pairs
from asterism.extras.detection.sources.run_lengths import encode
from asterism.ops import collectives
from tests import distributed

NAMES = ("a", "b", "c")
SIZE = (120, 160)


def rectangles(boxes: torch.Tensor) -> Any:
    masks = torch.zeros(len(boxes), *SIZE, dtype=torch.bool)
    for place, (left, top, right, bottom) in enumerate(boxes.round().int().tolist()):
        masks[place, top : bottom + 1, left : right + 1] = True
    return encode(masks) if len(boxes) else ()


def detections(boxes: torch.Tensor, scores: torch.Tensor, labels: torch.Tensor) -> Detections:
    return Detections(boxes, scores, labels, rectangles(boxes), NAMES, SIZE)


def objects(boxes: torch.Tensor, labels: torch.Tensor, crowd: torch.Tensor, areas: torch.Tensor) -> TrueObjects:
    return TrueObjects(boxes, labels, crowd, areas, rectangles(boxes), NAMES, SIZE)


def made(images: int = 12) -> tuple[list[Detections], list[TrueObjects]]:
    """Objects of all sizes, some of them crowds, and detections near them, missing, wrong and doubled."""
    draw = torch.Generator().manual_seed(0)

    def uniform(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=draw)

    predictions, truths = [], []
    for number in range(images):
        count = number % 5
        corner = uniform(count, 2) * torch.tensor([50.0, 10.0])
        sides = torch.tensor([12.0, 50.0, 106.0])[torch.randint(0, 3, (count, 1), generator=draw)] * (
            0.92 + 0.08 * uniform(count, 2)
        )
        boxes = torch.cat([corner, corner + sides], dim=1)
        labels = torch.randint(0, 3, (count,), generator=draw)
        crowd = uniform(count) < 0.15
        truths.append(objects(boxes, labels, crowd, sides.prod(dim=1)))
        again = torch.cat([boxes, boxes, 10 + 20 * uniform(2, 1).repeat(1, 4) + torch.tensor([0.0, 0, 30, 40])])
        again = (again + 6 * (uniform(len(again), 4) - 0.5)).clamp(0, 119)
        found = torch.cat([labels, labels, torch.randint(0, 3, (2,), generator=draw)])
        scores = uniform(len(again)).sort(descending=True).values
        predictions.append(detections(again, scores, found))
    return predictions, truths


def drawn(seed: int, images: int = 6, most: int = 12) -> tuple[list[Detections], list[TrueObjects]]:
    """Boxes on a grid of 16 pixels: many equal scores and overlaps, areas on the borders of sizes, empty images.

    One class may have no objects, another no detections.
    """
    draw = torch.Generator().manual_seed(seed)

    def whole(low: int, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=draw)

    def boxes(count: int) -> torch.Tensor:
        corner = 16.0 * whole(0, 3, count, 2)
        return torch.cat([corner, corner + torch.tensor([16.0, 32, 48, 64, 80])[whole(0, 5, count, 2)]], dim=1)

    predictions, truths = [], []
    for _ in range(images):
        count = int(whole(0, 7, 1)) * int(whole(0, 4, 1) > 0)
        own, labels = boxes(count), whole(0, 3 - seed % 2, count)
        areas = torch.where(whole(0, 2, count) > 0, (own[:, 2:] - own[:, :2]).prod(dim=1), 512.0 * whole(1, 20, count))
        truths.append(objects(own, labels, whole(0, 5, count) == 0, areas))
        wrong = int(whole(0, most, 1)) * int(whole(0, 4, 1) > 0)
        again, classes = torch.cat([own, boxes(wrong)]), torch.cat([labels, whole(0, 3, wrong)])
        kept = (classes >= (1 if seed % 3 == 0 else 0)) & (wrong > 0)
        predictions.append(detections(again[kept], whole(1, 6, int(kept.sum())) / 5, classes[kept]))
    return predictions, truths


def streamed(predictions: Sequence[Detections], truths: Sequence[TrueObjects]) -> dict[str, float]:
    metric = AveragePrecision(masks=True)
    for first in range(0, len(truths), 5):
        metric.update(predictions[first : first + 5], truths[first : first + 5])
    return metric.gathered()


def test_values_are_those_of_pycocotools() -> None:
    """Version 2.0.11, given the whole set."""
    expected = {"AP": 54.824428, "AP50": 94.444444, "AP75": 50.709833}
    expected |= {"AP_small": 35.858086, "AP_medium": 74.501100, "AP_large": 66.716172}
    expected |= {"mask_AP": 57.496024, "mask_AP50": 94.444444, "mask_AP75": 51.338467}
    expected |= {"mask_AP_small": 42.524752, "mask_AP_medium": 75.062156, "mask_AP_large": 65.594059}
    assert streamed(*made()) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("seed", "whole", "small", "medium"), [(1, 18.670438, 33.663366, 25.247525), (2, 50.330033, 16.831683, 50.165017)]
)
def test_equal_scores_equal_overlaps_and_sizes_without_objects(
    seed: int, whole: float, small: float, medium: float
) -> None:
    plain = {"AP": whole, "AP50": whole, "AP75": whole, "AP_small": small, "AP_medium": medium}
    expected = plain | {f"mask_{name}": value for name, value in plain.items()}
    assert streamed(*drawn(seed)) == pytest.approx(expected, abs=1e-6)


def test_the_hundredth_detection_counts_and_the_next_does_not() -> None:
    own = torch.tensor([[10.0, 10, 40, 40]])
    truth = objects(own, torch.zeros(1).long(), torch.zeros(1).bool(), torch.tensor([900.0]))
    for wrong, expected in ((99, 1.0), (100, 0.0)):
        boxes = torch.cat([own.repeat(wrong, 1) + 50, own])
        found = detections(boxes, torch.linspace(0.9, 0.1, wrong + 1), torch.zeros(wrong + 1).long())
        assert streamed([found], [truth])["AP50"] == pytest.approx(expected)


def test_a_crowd_takes_many_detections_that_count_as_neither_but_an_object_is_chosen_first() -> None:
    own = torch.tensor([[0.0, 0, 80, 80], [10, 10, 30, 30]])
    truth = objects(own, torch.zeros(2).long(), torch.tensor([True, False]), torch.tensor([6400.0, 400]))
    boxes = torch.tensor([[0.0, 0, 20, 20], [40, 40, 60, 60], [10, 10, 30, 31], [10, 10, 30, 30], [90, 90, 110, 110]])
    found = detections(boxes, torch.tensor([0.9, 0.8, 0.7, 0.6, 0.1]), torch.zeros(5).long())
    assert streamed([found], [truth])["AP50"] == pytest.approx(100)
    plain = objects(own, truth.labels, torch.zeros(2).bool(), truth.areas)
    assert streamed([found], [plain])["AP50"] < 50


def test_empty_images_and_nothing_at_all() -> None:
    predictions, truths = made(5)
    nothing = detections(torch.zeros(0, 4), torch.zeros(0), torch.zeros(0).long())
    empty = objects(torch.zeros(0, 4), torch.zeros(0).long(), torch.zeros(0).bool(), torch.zeros(0))
    whole = streamed(predictions, truths)
    assert streamed([*predictions, nothing], [*truths, empty]) == whole
    assert streamed([*predictions, nothing], [*truths, truths[4]])["AP"] < whole["AP"]
    assert streamed([predictions[4], *predictions], [empty, *truths])["AP"] < whole["AP"]
    zeros = {f"{prefix}{name}": 0 for prefix in ("", "mask_") for name in ("AP", "AP50", "AP75")}
    assert streamed([], []) == streamed([nothing], [empty]) == streamed(predictions[4:], [empty]) == zeros


def share_of_a_process() -> list[dict[str, float]]:
    """Of many images, of images with equal scores, and of one image, so that some processes have none."""
    part = slice(collectives.rank(), None, collectives.world_size())
    sets = [made(), drawn(1, images=7), drawn(2, images=9), made(5)]
    sets[-1] = (sets[-1][0][4:], sets[-1][1][4:])
    return [streamed(predictions[part], truths[part]) for predictions, truths in sets]


@pytest.mark.parametrize("world", [2, 3])
def test_several_processes_have_the_values_of_one(world: int) -> None:
    one = share_of_a_process()
    for other in distributed.run(share_of_a_process, world=world):
        assert other == one


def test_pairs_for_reports_ignore_crowds_and_count_doubles_as_wrong() -> None:
    boxes = torch.tensor([[0.0, 0, 10, 10], [20, 20, 40, 40]])
    truth = TrueObjects(boxes, torch.tensor([0, 1]), torch.tensor([False, True]), torch.ones(2), None, NAMES, SIZE)
    found = Detections(boxes[[0, 0, 1]], torch.tensor([0.9, 0.8, 0.7]), torch.tensor([0, 0, 1]), None, NAMES, SIZE)
    assert found_pairs(found, truth) == ([(0, 0)], [1], [])
