import torch

from asterism.ops.cycle_consistency import closes_cycle
from asterism.ops.neighbours import most_similar_row

# Two stored objects: the first looks (1, 0) in both views; the second turns from (0, 1) to (1, 1).
M = torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [1.0, 1.0]]])
C = torch.tensor([[[2.0, 0.1], [0.1, 2.0], [0.2, 3.0]], [[2.0, 0.1], [2.0, 1.5], [0.0, 3.0]]])


def own_rows() -> torch.Tensor:
    return torch.stack([most_similar_row(C[i], M[i]) for i in (0, 1)])


def test_cycles_close_through_the_other_view() -> None:
    nn = own_rows()
    assert nn.tolist() == [[0, 1, 1], [0, 1, 1]]
    # View 1: objects 1 and 2 both find the second row; in view 2 it shows (1, 1), nearest to object 1.
    # View 2: both find it again; in view 1 it shows (0, 1), nearest to object 1 or 2: (0.1, 2) has the smaller angle.
    assert closes_cycle(nn, C, M).tolist() == [[True, True, False], [True, True, False]]


def test_a_larger_batch_may_break_a_cycle() -> None:
    more = torch.cat([torch.tensor([[[5.0, 0.0]], [[5.0, 0.0]]]), C], dim=1)
    closed = closes_cycle(own_rows(), more, M, start=1 + torch.arange(3))
    assert closed.tolist() == [[False, True, False], [False, True, False]]


def test_an_object_without_a_neighbour_closes_no_cycle() -> None:
    nn = own_rows()
    nn[:, 0] = -1
    assert not closes_cycle(nn, C, M)[:, 0].any()
    assert closes_cycle(nn[:, :0], C[:, :0], M).shape == (2, 0)
