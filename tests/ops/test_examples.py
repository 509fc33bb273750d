"""The docstring examples of `asterism.ops` run and give the output shown."""

import doctest
import importlib
from pathlib import Path

import pytest
import torch

from asterism import ops

MODULES = sorted(file.stem for file in Path(ops.__path__[0]).glob("*.py") if ">>> " in file.read_text())


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    module = importlib.import_module(f"{ops.__name__}.{name}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        assert doctest.testmod(module, extraglobs={"torch": torch}).failed == 0
