import math

import pytest
import torch

from asterism.errors import UserError
from asterism.nn.positions import Grid, Resampling, resample, sincos_table, table_layout


def test_sincos_table_follows_its_formula() -> None:
    dim, (rows, columns) = 12, (2, 3)
    table = sincos_table(dim, (rows, columns))
    for row in range(rows):
        for column in range(columns):
            for half, place in enumerate((column, row)):  # columns come first
                for k in range(dim // 4):
                    angle = place * 10000 ** (-k / (dim / 4))
                    entry = table[row * columns + column, half * dim // 2 :]
                    assert entry[k] == pytest.approx(math.sin(angle), abs=1e-6)
                    assert entry[dim // 4 + k] == pytest.approx(math.cos(angle), abs=1e-6)


def cubic(x: float, a: float) -> float:
    x = abs(x)
    if x <= 1:
        return (a + 2) * x**3 - (a + 3) * x**2 + 1
    return a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a if x < 2 else 0.0


def slow_weights(old: int, new: int, form: Resampling) -> list[list[float]]:
    """Rows of contributions along one axis, from the definition."""
    step = old / (new + 0.1) if form == "offset" else old / new
    rows = []
    for i in range(new):
        centre, row = (i + 0.5) * step - 0.5, [0.0] * old
        if form == "antialiased":
            row = [cubic((j - centre) / max(step, 1.0), -0.5) for j in range(old)]
            row = [value / sum(row) for value in row]
        else:
            for j in range(math.floor(centre) - 1, math.floor(centre) + 3):
                row[min(max(j, 0), old - 1)] += cubic(j - centre, -0.75)
        rows.append(row)
    return rows


@pytest.mark.parametrize("form", ["antialiased", "plain", "offset"])
@pytest.mark.parametrize(
    ("old", "new"), [((5, 5), (3, 8)), ((4, 4), (2, 8)), ((5, 5), (1, 5)), ((4, 6), (7, 1)), ((1, 1), (2, 3))]
)
def test_resampling_follows_its_definition(old: Grid, new: Grid, form: Resampling) -> None:
    table = torch.randn(1, old[0] * old[1], 2, generator=torch.Generator().manual_seed(0))
    moved = resample(table, old, new, form).view(*new, 2)
    rows, columns = slow_weights(old[0], new[0], form), slow_weights(old[1], new[1], form)
    picture = table.view(*old, 2).double()
    for i in range(new[0]):
        for j in range(new[1]):
            expected = sum(rows[i][k] * columns[j][m] * picture[k, m] for k in range(old[0]) for m in range(old[1]))
            torch.testing.assert_close(moved[i, j].double(), expected, atol=1e-5, rtol=0)


def test_the_same_grid_changes_nothing() -> None:
    table = torch.randn(1, 6, 2)
    assert resample(table, (2, 3), (2, 3), "offset") is table
    assert not torch.equal(resample(table, (2, 3), (3, 2), "offset"), table)  # same number of patches, different shape


def test_layout_of_a_table() -> None:
    assert table_layout(197, 1, patches_only_first=False) == (14, False)
    assert table_layout(196, 1, patches_only_first=False) == (14, True)
    assert table_layout(9, 5, patches_only_first=False) == (2, False)
    assert table_layout(9, 5, patches_only_first=True) == (3, True)
    with pytest.raises(UserError, match="a table of 15 positions"):
        table_layout(15, 1, patches_only_first=False)
