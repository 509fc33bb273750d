"""A few cases of every cause; `make campaign` runs all."""

import importlib

import pytest

from tests.campaigns import CAMPAIGNS
from tests.campaigns.campaign import SKIPPED, Case, few, run_case

_SEED = 0
_PER_CAUSE = 1


def _chosen() -> dict[str, Case]:
    return {
        f"{name}: {case.cause}: {case.name}": case
        for name in CAMPAIGNS
        if name != "io"  # it runs every command to know its cases: test_io.py
        for case in few(importlib.import_module(f"tests.campaigns.{name}").cases(_SEED), _SEED, _PER_CAUSE)
    }


_CASES = _chosen()


@pytest.mark.parametrize("name", _CASES)
def test_a_case_ends_well(name: str) -> None:
    verdict = run_case(_CASES[name])
    if verdict.kind == SKIPPED:
        pytest.skip(verdict.detail)
    assert verdict.passed, f"{verdict.kind}: {verdict.detail}"
