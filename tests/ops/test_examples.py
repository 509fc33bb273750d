"""The examples in the docstrings of `asterism.ops` run and say what they claim."""

import doctest
import importlib
import pkgutil

import pytest
import torch

from asterism import ops

MODULES = sorted(module.name for module in pkgutil.iter_modules(ops.__path__))


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    module = importlib.import_module(f"{ops.__name__}.{name}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        result = doctest.testmod(module, extraglobs={"torch": torch})
    assert result.failed == 0


def test_there_are_examples() -> None:
    ideas = ("assignment", "block_masks", "concept_alignment", "koleo", "masking", "prototypes")
    finder = doctest.DocTestFinder()
    for name in ideas:
        module = importlib.import_module(f"{ops.__name__}.{name}")
        assert any(test.examples for test in finder.find(module)), name
