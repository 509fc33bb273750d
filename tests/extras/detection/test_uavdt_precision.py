"""The AP of UAVDT: its rules one by one, a slow version from its definition, and two processes."""

import torch

from asterism.extras.detection.objects import Detections, TrueObjects
from asterism.extras.detection.uavdt_precision import UavdtPrecision
from asterism.ops import collectives
from tests import distributed
from tests.extras.detection.test_average_precision import NAMES, SIZE, made

BOX = (10.0, 10.0, 50.0, 50.0)
OTHER = (60.0, 60.0, 90.0, 90.0)
INSIDE = (20.0, 20.0, 30.0, 30.0)


def truth(*boxes: tuple[float, ...], ignored: tuple[float, ...] | None = None) -> TrueObjects:
    edges = torch.tensor([*boxes, *([ignored] if ignored else [])]).view(-1, 4)
    crowd = torch.arange(len(edges)) >= len(boxes)
    return TrueObjects(
        edges, torch.zeros(len(edges), dtype=torch.long), crowd, torch.ones(len(edges)), None, NAMES, SIZE
    )


def found(*boxes: tuple[float, ...], label: int = 0) -> Detections:
    edges = torch.tensor(boxes).view(-1, 4)
    scores = torch.linspace(0.9, 0.1, len(edges)) if len(edges) > 1 else torch.full((len(edges),), 0.9)
    return Detections(edges, scores, torch.full((len(edges),), label), None, NAMES, SIZE)


def precision(*pairs: tuple[Detections, TrueObjects]) -> float:
    metric = UavdtPrecision()
    for prediction, labels in pairs:
        metric.update([prediction], [labels])
    return metric.gathered()["AP"]


def test_its_rules() -> None:
    assert precision((found(BOX), truth(BOX))) == 100
    assert precision((found(BOX, label=2), truth(BOX))) == 100  # classes do not matter
    assert precision((found((10.0, 10.0, 50.0, 39.0)), truth(BOX))) == 100  # an overlap of 0.725
    assert precision((found((10.0, 10.0, 50.0, 37.0)), truth(BOX))) == 0  # 0.675
    assert precision((found(BOX, BOX), truth(BOX))) == 100  # a second one after the first costs nothing …
    twice = precision((found(BOX, BOX, OTHER), truth(BOX, OTHER)))
    assert abs(twice - 100 * (1 / 2 + 1 / 2 * 2 / 3)) < 1e-9  # … but it does before another object
    assert precision((found(), truth(BOX))) == 0


def test_ignored_regions() -> None:
    """A detection inside does not count, one that touches the edge does."""
    both = truth(BOX, ignored=(60.0, 0.0, 100.0, 40.0))
    assert precision((found((70.0, 10.0, 90.0, 30.0), BOX), both)) == 100
    assert precision((found((60.0, 10.0, 90.0, 30.0), BOX), both)) == 50
    assert precision((found(INSIDE), truth(INSIDE, ignored=BOX))) == 0  # as in the benchmark's code


def slow(predictions: list[Detections], truths: list[TrueObjects]) -> float:
    """Precision and recall after every detection of the whole set, and the area below the best precision from there."""
    rows: list[tuple[float, bool]] = []
    objects = 0
    for prediction, labels in zip(predictions, truths, strict=True):
        free = [box for box, crowd in zip(labels.boxes.tolist(), labels.crowd.tolist(), strict=True) if not crowd]
        ignored = [box for box, crowd in zip(labels.boxes.tolist(), labels.crowd.tolist(), strict=True) if crowd]
        objects += len(free)
        for score, box in sorted(zip(prediction.scores.tolist(), prediction.boxes.tolist(), strict=True), reverse=True):
            if any(box[0] > r[0] and box[1] > r[1] and box[2] < r[2] and box[3] < r[3] for r in ignored):
                continue
            best = max(free, key=lambda other: overlap(box, other), default=None)
            hit = best is not None and overlap(box, best) >= 0.7
            if hit:
                assert best is not None
                free.remove(best)
            rows.append((score, hit))
    rows.sort(key=lambda row: -row[0])
    points = []
    for count in range(1, len(rows) + 1):
        hits = sum(hit for _, hit in rows[:count])
        points.append((hits / objects, hits / count))
    area = last = 0.0
    for place, (recall, _) in enumerate(points):
        area += (recall - last) * max(value for _, value in points[place:])
        last = recall
    return 100 * area


def overlap(one: list[float], other: list[float]) -> float:
    width = max(0.0, min(one[2], other[2]) - max(one[0], other[0]))
    height = max(0.0, min(one[3], other[3]) - max(one[1], other[1]))
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)]
    return width * height / (sum(areas) - width * height)


def test_it_is_its_definition() -> None:
    predictions, truths = made(20)
    expected = slow(predictions, truths)
    assert 5 < expected < 95
    torch.testing.assert_close(precision(*zip(predictions, truths, strict=True)), expected, atol=1e-9, rtol=1e-9)


def shared() -> float:
    predictions, truths = made(20)
    rank, world = collectives.rank(), collectives.world_size()
    return precision(*list(zip(predictions, truths, strict=True))[rank::world])


def test_processes_share_the_images() -> None:
    alone = shared()
    assert all(abs(value - alone) < 1e-9 for value in distributed.run(shared))
