import pytest
import torch
from torch.nn import functional as F

from asterism.nn import neighbour_lists
from asterism.nn.memory_bank import Memory
from asterism.nn.neighbour_lists import NeighbourLists
from asterism.ops.neighbours import nearest_rows
from asterism.ops.random import generator


@pytest.mark.parametrize(("length", "batch"), [(4, 5), (12, 5), (12, 40), (200, 7), (12, 300)])
def test_equal_to_a_full_search_at_every_step(length: int, batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbour_lists, "_COMPARED", 150)
    memory, draws = Memory(100, 6), generator(3)
    memory.rows.copy_(F.normalize(torch.randn(100, 6, generator=draws), dim=1))
    lists = NeighbourLists(100, length)
    drift = torch.zeros(6)
    for step in range(30):
        anchors = memory.sample(20, generator(step))
        for excluded in (anchors, None):
            ours, expected = (search(memory.rows, anchors, 4, excluded) for search in (lists, nearest_rows))
            assert torch.equal(ours[1], expected[1])
            torch.testing.assert_close(ours[0], expected[0])
        drift += 0.2 * torch.randn(6, generator=draws)  # later rows are elsewhere in the space, as in training
        lists.follow(memory.rows, memory.push(F.normalize(drift + torch.randn(batch, 6, generator=draws), dim=1)))


def test_lists_hold_exactly_the_rows_above_their_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbour_lists, "_COMPARED", 150)
    memory, draws = Memory(80, 5), generator(3)
    memory.rows.copy_(F.normalize(torch.randn(80, 5, generator=draws), dim=1))
    lists = NeighbourLists(80, 10)
    for _ in range(12):
        lists.follow(memory.rows, memory.push(F.normalize(torch.randn(9, 5, generator=draws), dim=1)))
    assert lists.floor.isfinite().all()  # every row was replaced and searched
    for i in range(80):
        above = {j for j in range(80) if float(memory.rows[i] @ memory.rows[j]) > float(lists.floor[i]) + 1e-6}
        listed = {int(j) for j, s in zip(lists.index[i], lists.similarity[i], strict=True) if s.isfinite()}
        assert above <= listed
        assert all(float(memory.rows[i] @ memory.rows[j]) > float(lists.floor[i]) - 1e-6 for j in listed)
