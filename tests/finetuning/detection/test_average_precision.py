"""COCO's average precision: the values of pycocotools and of faster-coco-eval on whole sets, and over processes."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import pytest
import torch

from asterism.data.sources.objects.run_lengths import encode, quiet_coco
from asterism.finetuning.detection.average_precision import AveragePrecision
from asterism.finetuning.detection.objects import Detections, TrueObjects, found_pairs
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
        truths.append(TrueObjects(boxes, labels, crowd, sides.prod(dim=1), rectangles(boxes), NAMES, SIZE))
        again = torch.cat([boxes, boxes, 10 + 20 * uniform(2, 1).repeat(1, 4) + torch.tensor([0.0, 0, 30, 40])])
        again = (again + 6 * (uniform(len(again), 4) - 0.5)).clamp(0, 119)
        found = torch.cat([labels, labels, torch.randint(0, 3, (2,), generator=draw)])
        scores = uniform(len(again)).sort(descending=True).values
        predictions.append(Detections(again, scores, found, rectangles(again), NAMES, SIZE))
    return predictions, truths


def official(
    predictions: list[Detections], truths: list[TrueObjects], kind: str, coco: Any, evaluation: Any
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


def streamed(predictions: list[Detections], truths: list[TrueObjects]) -> dict[str, float]:
    metric = AveragePrecision(len(NAMES), masks=True)
    for first in range(0, len(truths), 5):
        metric.update(predictions[first : first + 5], truths[first : first + 5])
    return metric.gathered()


@pytest.mark.parametrize("kind", ["bbox", "segm"])
def test_values_are_those_of_both_libraries(kind: str) -> None:
    import faster_coco_eval as faster
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    predictions, truths = made()
    found = streamed(predictions, truths)
    own = [found[f"{'mask_' if kind == 'segm' else ''}{name}"] for name in KEYS]
    assert all(2 < value < 98 for value in own[:3])
    assert own == pytest.approx(official(predictions, truths, kind, COCO, COCOeval), abs=1e-9)
    assert own == pytest.approx(official(predictions, truths, kind, faster.COCO, faster.COCOeval_faster), abs=1e-4)


def test_perfect_and_useless_detections() -> None:
    _, truths = made(6)
    perfect = [Detections(t.boxes, torch.ones(len(t.labels)), t.labels, t.run_lengths, NAMES, SIZE) for t in truths]
    assert streamed(perfect, truths)["AP"] == pytest.approx(100)
    assert streamed(perfect, truths)["mask_AP75"] == pytest.approx(100)
    none = [Detections(torch.zeros(0, 4), torch.zeros(0), torch.zeros(0).long(), (), NAMES, SIZE) for _ in truths]
    assert streamed(none, truths)["AP"] == 0


def share_of_a_process() -> dict[str, float]:
    predictions, truths = made()
    part = slice(collectives.rank(), None, collectives.world_size())
    return streamed(predictions[part], truths[part])


def test_two_processes_have_the_values_of_one() -> None:
    one = share_of_a_process()
    for other in distributed.run(share_of_a_process):
        assert other == pytest.approx(one, abs=1e-9)


def test_pairs_for_reports_ignore_crowds_and_count_doubles_as_wrong() -> None:
    boxes = torch.tensor([[0.0, 0, 10, 10], [20, 20, 40, 40]])
    truth = TrueObjects(boxes, torch.tensor([0, 1]), torch.tensor([False, True]), torch.ones(2), None, NAMES, SIZE)
    found = Detections(boxes[[0, 0, 1]], torch.tensor([0.9, 0.8, 0.7]), torch.tensor([0, 0, 1]), None, NAMES, SIZE)
    assert found_pairs(found, truth) == ([(0, 0)], [1], [])
