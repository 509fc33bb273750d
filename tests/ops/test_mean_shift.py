import math

import torch
from torch import Tensor

from asterism.ops.mean_shift import mean_shift, mode_distance

G = torch.Generator().manual_seed(0)


def _slow_step(queries: Tensor, keys: Tensor, scale: float) -> Tensor:
    rows = []
    for image_queries, image_keys in zip(queries, keys, strict=True):
        for query in image_queries:
            weights = torch.stack([torch.exp(scale * (query @ key)) for key in image_keys])
            total = sum(w * key for w, key in zip(weights, image_keys, strict=True))
            rows.append(total / weights.sum())
    return torch.stack(rows).view_as(queries)


def test_steps_and_their_gradients_are_those_of_the_slow_loop() -> None:
    for steps in (1, 3):
        queries, keys = (torch.randn(2, count, 8, generator=G, requires_grad=True) for count in (3, 5))
        slow = queries
        for _ in range(steps):
            slow = _slow_step(slow, keys, 0.3)
        ours = mean_shift(queries, keys, 0.3, steps)
        torch.testing.assert_close(ours, slow)
        cotangent = torch.randn(slow.shape, generator=G)
        own = torch.autograd.grad(ours, (queries, keys), cotangent)
        expected = torch.autograd.grad(slow, (queries, keys), cotangent)
        for mine, theirs in zip(own, expected, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


def test_mode_distance_is_between_unit_vectors() -> None:
    tokens, modes = torch.randn(2, 6, 5, generator=G).unbind()
    squares = [
        sum((a / math.hypot(*t.tolist()) - b / math.hypot(*m.tolist())) ** 2 for a, b in zip(t, m, strict=True))
        for t, m in zip(tokens, modes, strict=True)
    ]
    torch.testing.assert_close(mode_distance(tokens, modes), torch.stack(squares).mean())
    torch.testing.assert_close(mode_distance(tokens, 3 * tokens), torch.tensor(0.0), atol=1e-6, rtol=0)
