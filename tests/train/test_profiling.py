"""The profile names every part of a step, and its times add up."""

import pytest

from asterism.train.profiling import profile
from tests.train.tiny import tiny_recipe


def test_every_part_of_a_step_is_named() -> None:
    found = profile(tiny_recipe("ibot"), steps=1)
    parts = {"views", "transfer", "loss", "backward", "optimiser", "averages and memories"}
    networks = {"backbone", "head", "teacher backbone", "teacher head"}
    assert parts | networks <= set(found.parts)
    assert all(seconds > 0 for name, seconds in found.parts.items() if name in parts | networks)
    assert found.total == pytest.approx(sum(found.parts.values()))
