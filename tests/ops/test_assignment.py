import itertools
import math
import sys

import pytest
import torch
from torch import Tensor

from asterism.errors import MissingExtra
from asterism.ops import assignment
from tests import distributed


def test_sinkhorn_knopp_against_loops() -> None:
    logits = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(assignment.sinkhorn_knopp(logits, 0.2, 3), _sinkhorn_loops(logits, 0.2, 3))


def test_sinkhorn_knopp_survives_large_logits() -> None:
    targets = assignment.sinkhorn_knopp(100 * torch.randn(40, 30, generator=torch.Generator().manual_seed(0)), 0.06, 3)
    assert targets.isfinite().all()
    assert targets.min() >= 0
    sums = targets.sum(dim=1)  # tokens far below every prototype's best one may underflow, all others reach 1
    assert sums.max() < 1 + 1e-5
    assert (sums > 1 - 1e-5).sum() >= 10


@pytest.mark.parametrize("few", [0, 1000], ids=["summed in every iteration", "gathered once"])
def test_sinkhorn_knopp_balances_the_batch_of_all_processes(few: int) -> None:
    logits = torch.randn(12, 7, generator=torch.Generator().manual_seed(1))
    whole = assignment.sinkhorn_knopp(logits, 0.1, 3)
    parts = distributed.run(_sinkhorn_of_part, logits, few, world=2)
    torch.testing.assert_close(torch.cat(parts), whole, rtol=0, atol=1e-6)
    assert not torch.allclose(assignment.sinkhorn_knopp(logits[:6], 0.1, 3), whole[:6], atol=1e-2)


def test_transport_plan_against_loops() -> None:
    source, target = torch.randn(2, 1, 4, 3, generator=torch.Generator().manual_seed(2)).unbind(0)
    cost = assignment.distances(source, target)
    assert cost[0, 1, 2] == pytest.approx(math.dist(source[0, 1].tolist(), target[0, 2].tolist()), rel=1e-6)
    plan = assignment.transport_plan(cost, 0.3, 4)
    torch.testing.assert_close(plan[0], _transport_loops(cost[0], 0.3, 4), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(plan.sum(dim=1), torch.ones(1, 4))


def test_match_undoes_a_permutation_of_every_view() -> None:
    tokens = torch.randn(3, 1, 5, 8, generator=torch.Generator().manual_seed(3))
    order = torch.stack([torch.randperm(5, generator=torch.Generator().manual_seed(i)) for i in range(6)]).view(3, 2, 5)
    views = tokens.expand(3, 2, 5, 8).gather(2, order[..., None].expand(3, 2, 5, 8)) + 0.01
    assert assignment.match(views, tokens, 0.1, 5).equal(order)
    assert assignment.hungarian(assignment.distances(views, tokens)).equal(order)


def test_hungarian_against_all_permutations() -> None:
    cost = torch.rand(4, 5, 5, generator=torch.Generator().manual_seed(4))
    best = [
        min(itertools.permutations(range(5)), key=lambda p, c=c: sum(c[i][j] for i, j in enumerate(p)))
        for c in cost.tolist()
    ]
    assert assignment.hungarian(cost).equal(torch.tensor(best))


def test_hungarian_without_scipy_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(MissingExtra, match=r"asterism\[matching\]"):
        assignment.hungarian(torch.zeros(1, 2, 2))


def _sinkhorn_of_part(logits: Tensor, few: int) -> Tensor:
    from asterism.ops import collectives

    assignment._FEW = few
    part = logits.chunk(collectives.world_size())[collectives.rank()]
    return assignment.sinkhorn_knopp(part, 0.1, 3)


def _sinkhorn_loops(logits: Tensor, temperature: float, iterations: int) -> Tensor:
    m, k = logits.shape
    x = [[float(v) / temperature for v in row] for row in logits]
    top = [max(x[i][j] for i in range(m)) for j in range(k)]
    q = [[math.exp(x[i][j] - top[j] + 50) for j in range(k)] for i in range(m)]
    for _ in range(iterations):
        for j in range(k):
            total = sum(q[i][j] for i in range(m)) + 1e-8
            for i in range(m):
                q[i][j] /= total
        for i in range(m):
            total = sum(q[i]) + 1e-8
            q[i] = [v / total for v in q[i]]
    return torch.tensor(q)


def _transport_loops(cost: Tensor, epsilon: float, iterations: int) -> Tensor:
    s, t = cost.shape
    c = cost.tolist()
    u, v = [0.0] * s, [0.0] * t
    for _ in range(iterations):
        u = [-epsilon * math.log(sum(math.exp((v[j] - c[i][j]) / epsilon) for j in range(t))) for i in range(s)]
        v = [-epsilon * math.log(sum(math.exp((u[i] - c[i][j]) / epsilon) for i in range(s))) for j in range(t)]
    return torch.tensor([[math.exp((u[i] + v[j] - c[i][j]) / epsilon) for j in range(t)] for i in range(s)])
