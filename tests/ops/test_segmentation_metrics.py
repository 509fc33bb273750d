import math

import torch

from asterism.ops.segmentation_metrics import confusion, scores


def test_scores_equal_pixel_by_pixel_counting() -> None:
    g = torch.Generator().manual_seed(0)
    predicted, labels = torch.randint(3, (2, 5, 6), generator=g), torch.randint(4, (2, 5, 6), generator=g)
    void, classes = 3, 3
    found = scores(confusion(predicted, labels, classes, void))
    pairs = [(int(p), int(t)) for p, t in zip(predicted.flatten(), labels.flatten(), strict=True) if t != void]
    ious = []
    for c in range(classes):
        both = sum(p == c and t == c for p, t in pairs)
        either = sum(c in (p, t) for p, t in pairs)
        ious.append(both / either)
        assert math.isclose(float(found.iou[c]), ious[-1])
        assert math.isclose(float(found.accuracy[c]), both / sum(t == c for _, t in pairs))
    assert math.isclose(found.miou, sum(ious) / classes)
    assert math.isclose(found.aacc, sum(p == t for p, t in pairs) / len(pairs))


def test_absent_classes_do_not_count_but_falsely_predicted_ones_do() -> None:
    labels, predicted = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 0, 1, 2])
    found = scores(confusion(predicted, labels, 5, 255))
    assert found.iou[:3].tolist() == [1.0, 0.5, 0.0]  # class 2 was predicted and never labelled
    assert found.iou[3:].isnan().all()
    assert math.isclose(found.miou, 0.5)
    assert math.isclose(found.macc, 0.75)


def test_sets_are_counted_together_not_averaged() -> None:
    first = confusion(torch.tensor([0] * 10), torch.tensor([0] * 10), 2, 255)
    second = confusion(torch.tensor([0]), torch.tensor([1]), 2, 255)
    assert math.isclose(scores(first + second).miou, (10 / 11 + 0) / 2)
