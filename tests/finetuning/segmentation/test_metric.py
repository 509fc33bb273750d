"""The metric against a slow loop; the loss against its definition; what is drawn and remembered."""

import pytest
import torch
from torch.nn import functional as F

from asterism.finetuning.segmentation.maps import Labels, Segmentation
from asterism.finetuning.segmentation.report import class_sections, pixel_counts
from asterism.finetuning.segmentation.segment import SegmentationMetric
from asterism.images.masks import VOID
from asterism.types import Progress
from tests import distributed
from tests.finetuning.segmentation.drawn import sample
from tests.finetuning.segmentation.tiny_heads import segment

NAMES = ("background", "cat", "dog", "unicorn")


def pairs(count: int = 6) -> list[tuple[Segmentation, Labels]]:
    """Images of different sizes; the last class is never labelled."""
    draw = torch.Generator().manual_seed(2)
    found = []
    for number in range(count):
        size = (5 + number, 9)
        truth = torch.randint(0, 3, size, generator=draw).to(torch.uint8)
        guess = torch.where(torch.rand(size, generator=draw) < 0.6, truth, torch.randint(0, 4, size, generator=draw))
        truth[torch.rand(size, generator=draw) < 0.1] = VOID
        guess[guess == VOID] = 0
        found.append((Segmentation(guess.to(torch.uint8), NAMES), Labels(truth, NAMES)))
    return found


def measured(parts: list[tuple[Segmentation, Labels]]) -> dict[str, float]:
    metric = SegmentationMetric(NAMES, each_class=True)
    for prediction, truth in parts:
        metric.update([prediction], [truth])
    return metric.gathered()


def test_scores_are_those_of_a_slow_loop_over_all_pixels() -> None:
    right, union, labelled, total = [0] * 4, [0] * 4, [0] * 4, 0
    for prediction, truth in pairs():
        for guess, label in zip(prediction.mask.flatten().tolist(), truth.mask.flatten().tolist(), strict=True):
            if label == VOID:
                continue
            total += 1
            labelled[label] += 1
            right[label] += guess == label
            for name in {guess, label}:
                union[name] += 1
    ious = [100 * r / u for r, u in zip(right, union, strict=True) if u]
    found = measured(pairs())
    assert found["miou"] == pytest.approx(sum(ious) / len(ious))
    assert found["macc"] == pytest.approx(sum(100 * right[c] / labelled[c] for c in range(3)) / 3)
    assert found["aacc"] == pytest.approx(100 * sum(right) / total)
    assert [name for name in found if name.startswith("iou/")] == ["iou/background", "iou/cat", "iou/dog"]
    assert found["iou/cat"] == pytest.approx(100 * right[1] / union[1])


def one_of_two() -> dict[str, float]:
    import torch.distributed as dist

    return measured(pairs()[dist.get_rank() :: 2])


def test_two_processes_measure_as_one() -> None:
    first, second = distributed.run(one_of_two)
    assert first == second == measured(pairs())


@pytest.mark.parametrize("loss_on", ["pixels", "patches"])
def test_the_loss_is_the_mean_over_pixels_or_patches_and_void_counts_as_zero(loss_on: str) -> None:
    task = segment("linear", loss_on=loss_on).eval()
    batch = task.samples()([sample(n) for n in range(3)], [1, 2, 3])
    (masks,) = batch.truths
    masks[0, :8] = VOID
    with torch.no_grad():
        (logits,) = task.head(task.head.read(task.backbone, batch.images, None), None)
    total, side = 0.0, 16 if loss_on == "pixels" else 2
    if loss_on == "pixels":
        logits = F.interpolate(logits, (16, 16), mode="bilinear", align_corners=False)
    for image in range(3):
        for row in range(side):
            for column in range(side):
                cell = masks[image, row : row + 1, column : column + 1]
                if loss_on == "patches":
                    cell = masks[image, 8 * row : 8 * row + 8, 8 * column : 8 * column + 8]
                known = cell[cell != VOID].long()
                if len(known):
                    label = int(torch.bincount(known).argmax())
                    total -= float(logits[image, :, row, column].log_softmax(0)[label])
    assert float(task.loss(batch, Progress(0, 9, 3)).total.detach()) == pytest.approx(total / (3 * side**2), rel=1e-5)


def test_the_report_adds_up_what_is_remembered() -> None:
    remembered = [pixel_counts(p.mask, t.mask, 4) for p, t in pairs()]
    (section,) = class_sections(NAMES, remembered)
    found = measured(pairs())
    assert f"mIoU {found['miou']:.1f}, mean class accuracy {found['macc']:.1f}" in section.explanation
    assert f"<td>{found['iou/dog']:.1f}</td>" in section.body
    assert "unicorn" in section.body  # what a class is taken for
    (empty,) = class_sections(NAMES, [])
    assert "void" in empty.body
