"""The profile names every part of a step, and its times add up."""

from __future__ import annotations

import time

import pytest
import torch

from asterism.train.profiling import _Clock, profile
from tests.train.tiny import tiny_recipe


def test_a_part_inside_another_counts_for_itself_alone() -> None:
    clock = _Clock(torch.device("cpu"))
    begin = time.perf_counter()
    with clock("loss"):
        time.sleep(0.02)
        with clock("head"):
            time.sleep(0.05)
    total, taken = time.perf_counter() - begin, clock.take()
    assert taken["head"] >= 0.05
    assert taken["loss"] >= 0.02
    assert taken["loss"] + taken["head"] == pytest.approx(total, abs=0.01)
    assert clock.take() == {}


def test_every_part_of_a_step_is_named() -> None:
    found = profile(tiny_recipe("ibot"), steps=1)
    parts = {"views", "transfer", "loss", "backward", "optimiser", "averages and memories"}
    networks = {"backbone", "head", "teacher backbone", "teacher head"}
    assert parts | networks <= set(found.parts)
    assert all(seconds > 0 for name, seconds in found.parts.items() if name in parts | networks)
    assert found.total == pytest.approx(sum(found.parts.values()))
