import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from asterism.ops.clustering import (
    ClusteringConfig,
    cluster,
    draw_seeds,
    kmeans,
    mean_tokens,
    nearest_member,
    positional_cost,
    present_in_all,
    transport_rounds,
)
from asterism.ops.random import fold_each
from asterism.types import Progress

KEYS = fold_each(torch.arange(3), 5)
CONFIG = ClusteringConfig(clusters=4, position_weight=1.5, rounds=3)


def _scene(same_crop: bool = False) -> tuple[Tensor, Tensor]:
    """Tokens [3, 18, 6] of two 3×3 views, and their positions."""
    g = torch.Generator().manual_seed(1)
    tokens = torch.randn(3, 18, 6, generator=g) * 3 + 1
    positions = torch.rand(3, 18, 2, generator=g) * 100
    if same_crop:
        positions[:, 9:] = positions[:, :9]
    return tokens, positions


def _slow_clusters(tokens: Tensor, positions: Tensor, seeds: Tensor, config: ClusteringConfig) -> list[list[int]]:
    """One image and one number at a time, in double precision."""
    return [
        _slow_image(z.double().tolist(), e.double().tolist(), s.tolist(), config)
        for z, e, s in zip(tokens, positions, seeds, strict=True)
    ]


def _slow_image(z: list[list[float]], e: list[list[float]], seeds: list[int], config: ClusteringConfig) -> list[int]:
    n, k = len(z), len(seeds)
    z = [[x / math.hypot(*token) for x in token] for token in z]
    centroids = [z[seed] for seed in seeds]
    members: list[list[int]] = [[seed] for seed in seeds]
    column = [1 / k] * k
    labels: list[int] = []
    for _ in range(config.rounds):
        near: list[list[float | None]] = [[None] * k for _ in range(n)]
        for i in range(n):
            for j in range(k):
                others = [d for m in members[j] if (d := math.dist(e[i], e[m])) > 0]
                near[i][j] = min(others) if others else None
        mean = sum(d or 0.0 for row in near for d in row) / (n * k)
        position = [[mean if d is None else d for d in row] for row in near]
        largest = max(max(row) for row in position)
        cost = [
            [
                config.position_weight * position[i][j] / largest
                - sum(a * b for a, b in zip(z[i], centroids[j], strict=True))
                for j in range(k)
            ]
            for i in range(n)
        ]
        low, high = min(map(min, cost)), max(map(max, cost))
        plan = [[math.exp(-config.sharpness * (c - low) / (high - low)) for c in row] for row in cost]
        for _ in range(config.sinkhorn_iterations):
            for i in range(n):
                total = sum(plan[i])
                plan[i] = [p / (total * n) for p in plan[i]]
            for j in range(k):
                total = sum(row[j] for row in plan)
                for row in plan:
                    row[j] *= column[j] / total
        labels = [row.index(max(row)) for row in plan]
        members = [[i for i in range(n) if labels[i] == j] for j in range(k)]
        centroids = []
        for group in members:
            total_token = [sum(z[i][x] for i in group) for x in range(len(z[0]))]
            length = math.hypot(*total_token) or 1.0
            centroids.append([x / length for x in total_token])
        if config.marginals == "estimated":
            sizes = [len(group) + config.marginal_offset for group in members]
            column = [size / sum(sizes) for size in sizes]
    return labels


@pytest.mark.parametrize(
    ("change", "same_crop"),
    [
        ({}, False),
        ({"marginals": "uniform"}, False),
        ({"position_weight": 0.0}, False),
        ({"clusters": 18, "sharpness": 40.0}, False),  # a seed for every token; some clusters become empty
        ({"sinkhorn_iterations": 1, "rounds": 1}, True),
        ({"marginal_offset": 2.0}, True),
    ],
)
def test_labels_are_those_of_the_slow_loop(change: dict[str, float], same_crop: bool) -> None:
    config = CONFIG.model_copy(update=change)
    tokens, positions = _scene(same_crop)
    seeds = draw_seeds(KEYS, 18, config.clusters)
    assert cluster(tokens, positions, seeds, config).tolist() == _slow_clusters(tokens, positions, seeds, config)


def test_an_image_does_not_depend_on_its_batch_unless_costs_are_scaled_over_the_batch() -> None:
    tokens, positions = _scene()
    tokens[1:] = tokens[1:].abs() + 5  # nearly parallel: a narrow range of costs
    seeds = draw_seeds(KEYS, 18, 4)

    def first_cost(cost_range: str, images: int) -> Tensor:
        config = CONFIG.model_copy(update={"cost_range": cost_range})
        unit = F.normalize(tokens[1 : 1 + images], dim=-1)
        return next(transport_rounds(unit, positions[1 : 1 + images], seeds[1 : 1 + images], config)).cost[0]

    torch.testing.assert_close(first_cost("image", 1), first_cost("image", 2))
    torch.testing.assert_close(first_cost("batch", 1), first_cost("image", 1))
    assert not torch.allclose(first_cost("batch", 2), first_cost("batch", 1), atol=1e-3)
    assert first_cost("image", 2).max() == 1


def test_an_empty_cluster_costs_the_mean() -> None:
    distances = torch.tensor([[[torch.inf, 3.0, 1.0], [3.0, torch.inf, 2.0], [1.0, 2.0, torch.inf]]])
    found = nearest_member(distances, torch.tensor([[0, 0, -1]]), clusters=2)
    inf = torch.inf
    assert found.tolist() == [[[3.0, inf], [3.0, inf], [1.0, inf]]]
    # The second cluster is empty: its cost is the mean of the table, (3 + 3 + 1)/6, over the largest entry, 3.
    expected = torch.tensor([[[1, 7 / 18], [1, 7 / 18], [1 / 3, 7 / 18]]])
    torch.testing.assert_close(positional_cost(distances, torch.tensor([[0, 0, -1]]), clusters=2), expected)


def test_images_of_identical_tokens_give_finite_costs() -> None:
    labels = cluster(torch.ones(2, 8, 4), torch.zeros(2, 8, 2), draw_seeds(KEYS[:2], 8, 3), CONFIG)
    assert ((labels >= 0) & (labels < 4)).all()
    *_, last = transport_rounds(torch.ones(2, 8, 4), torch.zeros(2, 8, 2), draw_seeds(KEYS[:2], 8, 3), CONFIG)
    assert last.plan.isfinite().all()


def test_autocast_does_not_change_labels() -> None:
    tokens, positions = _scene()
    seeds = draw_seeds(KEYS, 18, 4)
    expected = cluster(tokens, positions, seeds, CONFIG)
    with torch.autocast("cpu", torch.bfloat16):
        assert cluster(tokens, positions, seeds, CONFIG).equal(expected)


def test_seeds_are_distinct_and_depend_on_the_image_alone() -> None:
    seeds = draw_seeds(fold_each(torch.arange(4000), 1), 10, 3)
    assert all(len(set(row)) == 3 for row in seeds[:50].tolist())
    counts = seeds.flatten().bincount(minlength=10)
    assert (counts - 1200).abs().max() < 5 * math.sqrt(4000 * 0.3 * 0.7)
    assert draw_seeds(fold_each(torch.arange(9, 10), 1), 10, 3)[0].equal(seeds[9])


def test_kmeans_equals_the_slow_loop() -> None:
    tokens, _ = _scene()
    unit = F.normalize(tokens, dim=-1)
    seeds = draw_seeds(KEYS, 18, 5)
    expected = []
    for image, chosen in zip(unit, seeds.tolist(), strict=True):
        centroids = [image[seed] for seed in chosen]
        for _ in range(4):
            labels = [max(range(5), key=lambda k: float(token @ centroids[k])) for token in image]
            for k in range(5):
                group = [token for token, label in zip(image, labels, strict=True) if label == k]
                if group:
                    mean = torch.stack(group).mean(dim=0)
                    centroids[k] = mean / mean.norm()
        expected.append(labels)
    assert kmeans(unit, seeds, rounds=4).tolist() == expected
    config = CONFIG.model_copy(update={"algorithm": "kmeans", "rounds": 4})
    assert cluster(tokens, torch.zeros(3, 18, 2), seeds, config).tolist() == expected


def test_objects_are_mean_tokens_of_clusters_in_both_views_else_zero() -> None:
    tokens = torch.randn(2, 2, 4, 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
    labels = torch.tensor([[[0, 0, 1, 2], [2, 2, 2, 2]], [[0, 1, 1, -1], [0, 0, 0, 0]]])
    assert present_in_all(labels, 3).tolist() == [[True, True, False], [False, False, False]]
    objects = mean_tokens(tokens, labels, 3)
    expected = torch.zeros(2, 2, 3, 3)
    expected[0, 0, 0] = (tokens[0, 0, 0] + tokens[0, 0, 1]) / 2
    expected[0, 0, 1] = tokens[0, 0, 2]
    expected[1, 0, 0] = tokens[1, 0, 0]
    expected[1, 0, 1] = (tokens[1, 0, 1] + tokens[1, 0, 2]) / 2
    torch.testing.assert_close(objects, expected)
    (gradient,) = torch.autograd.grad(objects[..., 0].sum(), tokens)
    shares = [[[0.5, 0.5, 1, 0], [0, 0, 0, 0]], [[1, 0.5, 0.5, 0], [0, 0, 0, 0]]]
    assert gradient[..., 0].tolist() == shares


def test_the_position_weight_changes_per_epoch() -> None:
    config = ClusteringConfig(position_weight=1.0, final_position_weight=2.0)
    weights = [config.at(Progress(step, 9, steps_per_epoch=3)).position_weight for step in range(9)]
    assert weights == [1.0] * 3 + [1.5] * 3 + [2.0] * 3
    assert CONFIG.at(Progress(5, 9, steps_per_epoch=3)) == CONFIG
