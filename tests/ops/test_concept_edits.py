import pytest
import torch

from asterism.errors import UserError
from asterism.ops.concept_edits import drop, move, shifted

G = torch.Generator().manual_seed(0)
WHERE = torch.rand(2, 4, 3, 5, generator=G).mul(4).softmax(dim=1)


def test_dropping_renormalises_the_rows_of_l() -> None:
    edited = drop(WHERE, [1, 3])
    for b in range(2):
        for y in range(3):
            for x in range(5):
                row = [0.0 if r in (1, 3) else float(WHERE[b, r, y, x]) for r in range(4)]
                expected = torch.tensor([share / sum(row) for share in row])
                torch.testing.assert_close(edited[b, :, y, x], expected)


def test_moving_shifts_the_map_and_the_shares_of_every_cell_still_sum_to_one() -> None:
    down, right, token = 1, -2, 2
    edited = move(WHERE, token, down, right)
    for b in range(2):
        for y in range(3):
            for x in range(5):
                inside = 0 <= y - down < 3 and 0 <= x - right < 5
                share = float(WHERE[b, token, y - down, x - right]) if inside else 0.0
                others = sum(float(WHERE[b, r, y, x]) for r in range(4) if r != token)
                row = [share if r == token else (1 - share) * float(WHERE[b, r, y, x]) / others for r in range(4)]
                torch.testing.assert_close(edited[b, :, y, x], torch.tensor(row))


def test_cells_that_belonged_to_one_concept_alone_are_shared_by_the_others() -> None:
    where = torch.zeros(1, 3, 1, 2)
    where[0, 0, 0, 0] = where[0, 1, 0, 1] = 1.0
    torch.testing.assert_close(drop(where, [0])[0, :, 0, 0], torch.tensor([0.0, 0.5, 0.5]))
    torch.testing.assert_close(move(where, 0, 0, 1)[0, :, 0], torch.tensor([[0.0, 1.0], [0.5, 0.0], [0.5, 0.0]]))


@pytest.mark.parametrize(("down", "right"), [(3, 0), (0, 5), (-7, 9)])
def test_parts_shifted_out_of_the_image_are_lost(down: int, right: int) -> None:
    assert shifted(WHERE[:, 0], down, right).abs().sum() == 0
    torch.testing.assert_close(move(WHERE, 0, down, right), drop(WHERE, [0]))


def test_errors_name_concepts_that_do_not_exist() -> None:
    for token in (4, -1):
        with pytest.raises(UserError, match=f"concept {token} does not exist; this model has 4, numbered from 0 to 3"):
            drop(WHERE, [token])
        with pytest.raises(UserError, match="numbered from 0 to 3"):
            move(WHERE, token, 1, 0)
    with pytest.raises(UserError, match="all 4 concepts"):
        drop(WHERE, range(4))
    with pytest.raises(UserError, match="only concept"):
        move(WHERE[:, :1], 0, 1, 0)
