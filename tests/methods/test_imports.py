"""Importing a method does not load what it does not need."""

import subprocess
import sys

from asterism.methods import method_names


def test_methods_without_foreign_weights_do_not_import_their_readers() -> None:
    names = sorted(set(method_names()) - {"distill", "stellar", "vq"})
    code = "import importlib, sys\n" + "".join(
        f"importlib.import_module('asterism.methods.{name}')\n"
        f"print(*('{name} imports ' + m for m in sys.modules if m.startswith('asterism.nn.weights')), sep='\\n')\n"
        for name in names
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == []
