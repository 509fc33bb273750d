import math

import pytest

from asterism.ops.schedules import cosine, ramp, ramp_per_epoch, ramp_per_step, warmup_cosine
from asterism.types import Progress


def test_warmup_reaches_its_peak_on_its_last_step_and_the_cosine_starts_there_again() -> None:
    values = [warmup_cosine(step, 10, peak=1.0, final=0.2, warmup_steps=5) for step in range(10)]
    assert values[:6] == pytest.approx([0, 0.25, 0.5, 0.75, 1, 1])
    assert values[6:] == pytest.approx([0.6 + 0.4 * math.cos(math.pi * i / 5) for i in range(1, 5)])


def test_cosine_stops_one_step_short_of_its_end() -> None:
    assert cosine(0, 8, 0.04, 0.4) == pytest.approx(0.04)
    assert cosine(4, 8, 0.04, 0.4) == pytest.approx(0.22)
    assert cosine(7, 8, 0.04, 0.4) < 0.4
    assert cosine(8, 8, 0.04, 0.4) == pytest.approx(0.4)


@pytest.mark.parametrize("warmup", [0, 1])
def test_short_warmups(warmup: int) -> None:
    first, second = (warmup_cosine(step, 4, 1.0, 0.0, warmup, start=0.5) for step in (0, 1))
    assert first == (1.0 if warmup == 0 else 0.5)
    assert second == pytest.approx(cosine(1 - warmup, 4 - warmup, 1.0, 0.0))


def test_ramp_holds_its_final_value() -> None:
    assert [ramp(i, 4, 1.0, 4.0) for i in range(6)] == pytest.approx([1, 2, 3, 4, 4, 4])
    assert ramp(0, 0, 1.0, 4.0) == 4.0


def test_ramps_per_epoch_or_per_step() -> None:
    steps = [Progress(step, 12, steps_per_epoch=3) for step in range(12)]
    stairs = [ramp_per_epoch(p, 3, 0.0, 2.0) for p in steps]
    smooth = [ramp_per_step(p, 3, 0.0, 8.0) for p in steps]
    assert stairs == pytest.approx([0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 2, 2])
    assert smooth == pytest.approx([0, 1, 2, 3, 4, 5, 6, 7, 8, 8, 8, 8])
