import pytest
import torch

from asterism.errors import UserError
from asterism.ops import collectives
from tests.distributed import run


def test_a_single_process_changes_nothing() -> None:
    values = torch.arange(6.0).reshape(3, 2).requires_grad_()
    assert (collectives.rank(), collectives.world_size()) == (0, 1)
    for operation in (
        collectives.all_reduce_sum,
        collectives.all_reduce_max,
        collectives.all_gather_rows,
        collectives.all_gather_ragged_rows,
    ):
        assert operation(values).equal(values), operation
        assert not operation(values).requires_grad, operation
    assert collectives.all_gather_fields(values, values[:, :1])[1].equal(values[:, :1])
    assert collectives.all_reduce_mean_with_grad(values) is values
    assert collectives.broadcast_object("same") == "same"
    collectives.barrier()


def _everything() -> dict[str, object]:
    rank = collectives.rank()
    mine = torch.tensor([[1.0, 5.0], [2.0, -1.0]]) * (rank + 1)
    result: dict[str, object] = {
        "rank": (rank, collectives.world_size()),
        "sum": collectives.all_reduce_sum(mine.T),  # not contiguous
        "max": collectives.all_reduce_max(mine),
        "rows": collectives.all_gather_rows(mine.T),
        "flags": collectives.all_gather_rows(torch.tensor([rank == 0, True])),
        "scalars": collectives.all_gather_rows(torch.tensor([rank])),
        "ragged": collectives.all_gather_ragged_rows(torch.full((2 * rank, 3), 7 + rank)),
        "fields": collectives.all_gather_fields(mine.T, torch.tensor([rank == 0, True]), mine[:, None].half() + 2**-9),
        "ragged fields": collectives.all_gather_fields(torch.full((2 * rank, 3), 7), torch.arange(2 * rank)),
        "one row": collectives.all_gather_fields(torch.ones(rank, 5).bool(), torch.arange(rank), torch.ones(rank, 1)),
        "no rows": collectives.all_gather_fields(torch.ones(0, 5).bool(), torch.arange(0)),
        "object": collectives.broadcast_object({"from": rank}),
        "object_1": collectives.broadcast_object({"from": rank}, source=1),
        "mine": mine,
    }
    collectives.barrier()
    return result


def test_two_processes_exchange_values() -> None:
    ones = torch.tensor([[1.0, 5.0], [2.0, -1.0]])
    for rank, got in enumerate(run(_everything)):
        assert got["rank"] == (rank, 2)
        assert got["sum"].equal(3 * ones.T)
        assert got["max"].equal(torch.tensor([[2.0, 10.0], [4.0, -1.0]]))
        assert got["rows"].equal(torch.cat([ones.T, 2 * ones.T]))
        assert got["flags"].equal(torch.tensor([True, True, False, True]))
        assert got["scalars"].equal(torch.tensor([0, 1]))
        assert got["ragged"].equal(torch.full((2, 3), 8))  # rank 0 contributed no rows
        sevens, numbers = got["ragged fields"]
        assert (sevens.shape, numbers.tolist()) == ((2, 3), [0, 1])
        assert [field.tolist() for field in got["one row"]] == [[[True] * 5], [0], [[1.0]]]
        assert [field.shape for field in got["no rows"]] == [(0, 5), (0,)]
        rows, flags, halves = got["fields"]
        assert rows.equal(got["rows"])
        assert flags.equal(got["flags"])
        assert halves.equal((torch.cat([ones, 2 * ones]).half() + 2**-9)[:, None])
        assert got["object"] == {"from": 0}
        assert got["object_1"] == {"from": 1}
        assert got["mine"].equal((rank + 1) * ones), "inputs are unchanged"


def _loss(weight: torch.Tensor, rows: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
    """A loss that depends on the rows of this process and, nonlinearly, on the mean over all processes."""
    return (rows @ weight).square().mean() + (mean.log() * mean).sum()


def _gradient(rows: torch.Tensor) -> torch.Tensor:
    weight = torch.tensor([0.3, -0.2, 0.9], requires_grad=True)
    mine = rows[collectives.rank()]
    mean = collectives.all_reduce_mean_with_grad((mine * weight).softmax(dim=1).mean(dim=0))
    _loss(weight, mine, mean).backward()
    return collectives.all_reduce_sum(weight.grad) / collectives.world_size()  # as data-parallel training does


def test_the_mean_has_the_gradient_of_the_average_loss() -> None:
    rows = torch.linspace(-1, 2, 24).reshape(2, 4, 3)
    weight = torch.tensor([0.3, -0.2, 0.9], requires_grad=True)
    mean = (rows * weight).softmax(dim=2).mean(dim=(0, 1))
    torch.stack([_loss(weight, part, mean) for part in rows]).mean().backward()
    for gradient in run(_gradient, rows):
        torch.testing.assert_close(gradient, weight.grad)


def _mistake_on_rank_1() -> tuple[int, str]:
    def action() -> int:
        if collectives.rank() == 1:
            raise UserError("the mask of 7.png is missing")
        return 3

    fine = collectives.on_every_process(lambda: 5 + collectives.rank())
    with pytest.raises(UserError) as error:
        collectives.on_every_process(action)
    return fine, str(error.value)


def test_a_user_error_in_one_process_is_raised_in_all() -> None:
    assert run(_mistake_on_rank_1) == [(5, "the mask of 7.png is missing"), (6, "the mask of 7.png is missing")]
    assert collectives.on_every_process(lambda: 4) == 4
