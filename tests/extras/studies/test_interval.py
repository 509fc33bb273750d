import math

import pytest

from asterism.extras.studies.interval import interval, t_quantile


def test_three_values_have_students_interval() -> None:
    found = interval([1.0, 2.0, 3.0])
    assert found is not None
    assert found.half == pytest.approx(4.303 * 1.0 / math.sqrt(3))


@pytest.mark.parametrize("freedom", [2, 3, 9, 30, 31, 60, 1000])
def test_quantiles_are_those_of_students_t(freedom: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    assert t_quantile(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), abs=6e-4)
