"""COCO's average precision: the values of pycocotools and of faster-coco-eval on whole sets, and over processes."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from asterism.extras.detection.average_precision import AveragePrecision
from asterism.extras.detection.objects import Detections, TrueObjects, found_pairs
from asterism.extras.detection.sources.run_lengths import encode, quiet_coco
from asterism.ops import collectives
from tests import distributed

NAMES = ("a", "b", "c")
SIZE = (120, 160)
KEYS = ("AP", "AP50", "AP75", "AP_small", "AP_medium", "AP_large")


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


def official(
    predictions: Sequence[Detections], truths: Sequence[TrueObjects], kind: str, coco: Any, evaluation: Any
) -> list[float]:
    """The values of a library that is given the whole set at once."""
    annotations = [record for number, truth in enumerate(truths, 1) for record in truth.as_coco(number)]
    images = [{"id": number, "height": SIZE[0], "width": SIZE[1]} for number in range(1, len(truths) + 1)]
    categories = [{"id": 1 + place, "name": name} for place, name in enumerate(NAMES)]
    for number, record in enumerate(annotations, 1):
        record["id"] = number
    results = [record for number, found in enumerate(predictions, 1) for record in found.as_coco(number)]
    wanted = {"image_id", "category_id", "score", "bbox" if kind == "bbox" else "segmentation"}
    with contextlib.redirect_stdout(io.StringIO()), quiet_coco():
        truth = coco()
        truth.dataset = {"images": images, "annotations": annotations, "categories": categories, "info": {}}
        truth.createIndex()
        loaded = truth.loadRes([{name: record[name] for name in wanted} for record in results])
        run = evaluation(truth, loaded, kind)
        run.evaluate()
        run.accumulate()
        run.summarize()
    return [100 * float(value) for value in run.stats[:6]]


def by_pycocotools(predictions: Sequence[Detections], truths: Sequence[TrueObjects], kind: str) -> dict[str, float]:
    """Without the sizes that no object has."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    found = dict(zip(KEYS, official(predictions, truths, kind, COCO, COCOeval), strict=True))
    return {name: value for name, value in found.items() if value >= 0}


def streamed(predictions: Sequence[Detections], truths: Sequence[TrueObjects]) -> dict[str, float]:
    metric = AveragePrecision(len(NAMES), masks=True)
    for first in range(0, len(truths), 5):
        metric.update(predictions[first : first + 5], truths[first : first + 5])
    return metric.gathered()


def assert_official(predictions: Sequence[Detections], truths: Sequence[TrueObjects]) -> dict[str, float]:
    found = streamed(predictions, truths)
    expected = by_pycocotools(predictions, truths, "bbox")
    masks = by_pycocotools(predictions, truths, "segm")
    assert found == pytest.approx(expected | {f"mask_{name}": value for name, value in masks.items()}, abs=1e-9)
    return found


@pytest.mark.parametrize("kind", ["bbox", "segm"])
def test_values_are_those_of_both_libraries(kind: str) -> None:
    import faster_coco_eval as faster

    predictions, truths = made()
    found = assert_official(predictions, truths)
    own = [found[f"{'mask_' if kind == 'segm' else ''}{name}"] for name in KEYS]
    assert all(2 < value < 98 for value in own[:3])
    assert own == pytest.approx(official(predictions, truths, kind, faster.COCO, faster.COCOeval_faster), abs=1e-9)


@pytest.mark.parametrize("seed", range(12))
def test_equal_scores_equal_overlaps_borders_of_sizes_and_missing_classes(seed: int) -> None:
    assert_official(*drawn(seed))


def test_only_the_best_hundred_of_a_class_in_an_image_count() -> None:
    """Those of other classes and images do not use up the hundred."""
    draw = torch.Generator().manual_seed(0)
    corner = 60 * torch.rand(8, 2, generator=draw)
    own = torch.cat([corner, corner + 20 + 10 * torch.rand(8, 2, generator=draw)], dim=1)
    labels = torch.tensor([0, 0, 0, 0, 0, 0, 1, 1])
    truth = objects(own, labels, torch.zeros(8).bool(), (own[:, 2:] - own[:, :2]).prod(dim=1))
    place = torch.randint(0, 8, (240,), generator=draw)
    scores = torch.rand(240, generator=draw)
    scores[place < 3] /= 100  # detections of these objects come after the hundred best of their class
    several = detections(own[place] + 2 * torch.rand(240, 4, generator=draw), scores, labels[place])
    assert (several.labels == 0).sum() > 150
    values = assert_official([several, several], [truth, truth])
    best = several.scores.sort(descending=True).indices[:100]  # of all classes together: another value
    fewer = detections(several.boxes[best], several.scores[best], several.labels[best])
    assert streamed([fewer, fewer], [truth, truth])["AP"] != pytest.approx(values["AP"], abs=0.1)


def test_the_hundredth_detection_counts_and_the_next_does_not() -> None:
    own = torch.tensor([[10.0, 10, 40, 40]])
    truth = objects(own, torch.zeros(1).long(), torch.zeros(1).bool(), torch.tensor([900.0]))
    for wrong, expected in ((99, 1.0), (100, 0.0)):
        boxes = torch.cat([own.repeat(wrong, 1) + 50, own])
        found = detections(boxes, torch.linspace(0.9, 0.1, wrong + 1), torch.zeros(wrong + 1).long())
        assert assert_official([found], [truth])["AP50"] == pytest.approx(expected)


def test_of_objects_that_overlap_equally_the_later_is_chosen() -> None:
    own = torch.tensor([[0.0, 0, 20, 20], [8, 0, 28, 20]])
    found = detections(
        torch.tensor([[4.0, 0, 24, 20], [0, 0, 20, 20]]), torch.tensor([0.9, 0.8]), torch.zeros(2).long()
    )
    for order, least, most in (([0, 1], 99, 101), ([1, 0], 0, 60)):
        truth = objects(own[order], torch.zeros(2).long(), torch.zeros(2).bool(), torch.full((2,), 400.0))
        assert least < assert_official([found], [truth])["AP50"] < most


def test_a_crowd_takes_many_detections_that_count_as_neither_but_an_object_is_chosen_first() -> None:
    own = torch.tensor([[0.0, 0, 80, 80], [10, 10, 30, 30]])
    truth = objects(own, torch.zeros(2).long(), torch.tensor([True, False]), torch.tensor([6400.0, 400]))
    boxes = torch.tensor([[0.0, 0, 20, 20], [40, 40, 60, 60], [10, 10, 30, 31], [10, 10, 30, 30], [90, 90, 110, 110]])
    found = detections(boxes, torch.tensor([0.9, 0.8, 0.7, 0.6, 0.1]), torch.zeros(5).long())
    assert assert_official([found], [truth])["AP50"] == pytest.approx(100)
    plain = objects(own, truth.labels, torch.zeros(2).bool(), truth.areas)
    assert assert_official([found], [plain])["AP50"] < 50


def test_of_a_size_other_objects_are_neither_found_nor_missed() -> None:
    """An object as large as the border of two sizes counts in both; one that is left out can be found only once."""
    sides = torch.tensor([[32.0, 32], [40, 40], [96, 96], [10, 10], [97, 96]])
    own = torch.cat([torch.zeros(5, 2), sides], dim=1)
    none = torch.zeros(5).bool()
    truths = [objects(own[[i]], torch.zeros(1).long(), none[:1], sides[[i]].prod(dim=1)) for i in range(5)]
    twice = [detections(own[[i, i]], torch.tensor([0.9, 0.5]), torch.zeros(2).long()) for i in range(4)]
    missed = detections(own[[3]] + 100, torch.tensor([0.95]), torch.zeros(1).long())
    found = assert_official([*twice, missed], truths)
    assert 0 < found["AP_small"] < 100
    assert 0 < found["AP_large"] < 100


def test_empty_images_and_nothing_at_all() -> None:
    predictions, truths = made(5)
    nothing = detections(torch.zeros(0, 4), torch.zeros(0), torch.zeros(0).long())
    empty = objects(torch.zeros(0, 4), torch.zeros(0).long(), torch.zeros(0).bool(), torch.zeros(0))
    whole = assert_official(predictions, truths)
    assert assert_official([*predictions, nothing], [*truths, empty]) == whole
    assert assert_official([*predictions, nothing], [*truths, truths[4]])["AP"] < whole["AP"]
    assert assert_official([predictions[4], *predictions], [empty, *truths])["AP"] < whole["AP"]
    zeros = {f"{prefix}{name}": 0 for prefix in ("", "mask_") for name in ("AP", "AP50", "AP75")}
    assert streamed([], []) == streamed([nothing], [empty]) == streamed(predictions[4:], [empty]) == zeros


def test_perfect_and_useless_detections() -> None:
    _, truths = made(6)
    perfect = [Detections(t.boxes, torch.ones(len(t.labels)), t.labels, t.run_lengths, NAMES, SIZE) for t in truths]
    assert streamed(perfect, truths)["AP"] == pytest.approx(100)
    assert streamed(perfect, truths)["mask_AP75"] == pytest.approx(100)
    none = [Detections(torch.zeros(0, 4), torch.zeros(0), torch.zeros(0).long(), (), NAMES, SIZE) for _ in truths]
    assert streamed(none, truths)["AP"] == 0


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


def test_processes_exchange_a_few_bytes_per_detection() -> None:
    predictions, truths = made()
    with collectives.counted_bytes() as counts:
        streamed(predictions, truths)
    kinds = 2  # boxes and masks
    assert counts["all-gather"] == kinds * 34 * sum(map(len, predictions))


def test_pairs_for_reports_ignore_crowds_and_count_doubles_as_wrong() -> None:
    boxes = torch.tensor([[0.0, 0, 10, 10], [20, 20, 40, 40]])
    truth = TrueObjects(boxes, torch.tensor([0, 1]), torch.tensor([False, True]), torch.ones(2), None, NAMES, SIZE)
    found = Detections(boxes[[0, 0, 1]], torch.tensor([0.9, 0.8, 0.7]), torch.tensor([0, 0, 1]), None, NAMES, SIZE)
    assert found_pairs(found, truth) == ([(0, 0)], [1], [])
