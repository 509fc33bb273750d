"""Names in tables cannot become programs of a spreadsheet; numbers stay numbers."""

import csv
import io

import pytest

from asterism.csv_text import comma_separated


@pytest.mark.parametrize("text", ["=1+1", "+1|cmd", "-2+3", "@SUM(1)", "\t=1", "\r=1", "\n=1", "＝1", "=a,b\n"])
def test_a_formula_is_text(text: str) -> None:
    ((cell, number),) = csv.reader(io.StringIO(comma_separated([[text, -0.5]]), newline=""))
    assert (cell, number) == (f"'{text}", "-0.5")


def test_other_cells_are_as_they_were() -> None:
    assert comma_separated([["a=1", "-1e-3", 'b"', None, 2]]) == 'a=1,-1e-3,"b""",,2\n'
