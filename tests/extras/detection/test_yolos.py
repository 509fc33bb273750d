"""YOLOS: matching against every permutation, GIoU and losses against slow loops."""

from itertools import permutations

import torch

from asterism.extras.detection.heads import YolosConfig
from asterism.extras.detection.yolos import least_cost_pairs, matched_losses, matching_cost
from tests.extras.detection.drawn import detector


def boxes(count: int, seed: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.rand(count, 4, generator=draw) * 0.4 + 0.2


def slow_giou(one: torch.Tensor, other: torch.Tensor) -> float:
    """Of two boxes given as centre, width and height."""
    (ax, ay, aw, ah), (bx, by, bw, bh) = one.tolist(), other.tolist()
    a, b = (ax - aw / 2, ay - ah / 2, ax + aw / 2, ay + ah / 2), (bx - bw / 2, by - bh / 2, bx + bw / 2, by + bh / 2)
    across = max(0.0, min(a[2], b[2]) - max(a[0], b[0]))
    down = max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
    inter = across * down
    union = aw * ah + bw * bh - inter
    hull = (max(a[2], b[2]) - min(a[0], b[0])) * (max(a[3], b[3]) - min(a[1], b[1]))
    return inter / union - (hull - union) / hull


def test_matching_has_the_least_cost_of_all_assignments() -> None:
    for seed in range(20):
        cost = torch.rand(5, 3, generator=torch.Generator().manual_seed(seed))
        rows, columns = least_cost_pairs(cost)
        found = float(cost[rows, columns].sum())
        best = min(
            float(sum(cost[row, column] for column, row in enumerate(order))) for order in permutations(range(5), 3)
        )
        assert len(set(rows.tolist())) == len(set(columns.tolist())) == 3
        assert abs(found - best) < 1e-6


def test_costs_and_losses_are_those_of_a_slow_loop() -> None:
    config = YolosConfig(tokens=5)
    draw = torch.Generator().manual_seed(1)
    logits, own = torch.randn(2, 5, 4, generator=draw), torch.stack([boxes(5, 2), boxes(5, 3)])
    labels, true = [torch.tensor([2, 0]), torch.tensor([1])], [boxes(2, 4), boxes(1, 5)]
    distance = overlap = cross = weight = 0.0
    for image in range(2):
        probability = logits[image].softmax(dim=1)
        cost = matching_cost(logits[image], own[image], labels[image], true[image], config)
        for token in range(5):
            for place, label in enumerate(labels[image].tolist()):
                expected = 5 * float((own[image, token] - true[image][place]).abs().sum())
                expected += -float(probability[token, label]) - 2 * slow_giou(own[image, token], true[image][place])
                assert abs(float(cost[token, place]) - expected) < 1e-5
        best = min(permutations(range(5), len(labels[image])), key=lambda o: sum(cost[t, c] for c, t in enumerate(o)))
        wanted = dict(zip(best, range(len(best)), strict=True))
        for token in range(5):
            if token in wanted:
                place = wanted[token]
                distance += float((own[image, token] - true[image][place]).abs().sum())
                overlap += 1 - slow_giou(own[image, token], true[image][place])
                cross -= float(probability[token, labels[image][place]].log())
                weight += 1
            else:
                cross -= 0.1 * float(probability[token, 3].log())
                weight += 0.1
    losses = matched_losses(logits, own, labels, true, config)
    expected_terms = {"class": cross / weight, "box": distance / 3, "giou": overlap / 3}
    for name, value in expected_terms.items():
        assert abs(losses.terms[name].item() - value) < 1e-5, name
    assert losses.weights == {"box": 5, "giou": 2}


def test_boxes_are_scaled_back_to_the_image() -> None:
    """A token whose box is the lower right quarter of the canvas names that quarter of the image."""
    task = detector("yolos", tokens=1).eval()
    last = task.head.box_layers[-2]
    with torch.no_grad():
        last.weight.zero_()
        last.bias.copy_(torch.logit(torch.tensor([0.75, 0.75, 0.5, 0.5])))
        (found,) = task.predict([torch.zeros(3, 64, 64, dtype=torch.uint8)])
    torch.testing.assert_close(found.boxes, torch.tensor([[32.0, 32.0, 64.0, 64.0]]), atol=1e-3, rtol=0)
