"""Importing a method does not load what it does not need."""

import subprocess
import sys

import pytest

from asterism.methods import method_names


@pytest.mark.parametrize("name", sorted(set(method_names()) - {"distill", "stellar", "vq"}))
def test_a_method_without_foreign_weights_does_not_import_their_readers(name: str) -> None:
    code = (
        f"import sys, asterism.methods.{name}; print(*(m for m in sys.modules if m.startswith('asterism.nn.weights')))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == []
