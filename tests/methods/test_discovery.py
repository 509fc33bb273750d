import subprocess
import sys

import pytest

from asterism.errors import UserError
from asterism.methods import method_class, method_names
from asterism.methods.base import Method


def test_every_file_defines_the_method_of_its_name() -> None:
    assert {"dino", "mae"} <= set(method_names())
    assert "base" not in method_names()
    for name in method_names():
        method = method_class(name)
        assert issubclass(method, Method)
        assert method.__module__ == f"asterism.methods.{name}"
        assert method.Config(name=name).name == name


def test_the_error_for_an_unknown_name_suggests_near_matches() -> None:
    with pytest.raises(UserError, match=r"unknown method 'dinno'; did you mean 'dino'"):
        method_class("dinno")


def test_names_are_known_without_importing_torch() -> None:
    code = "import sys, asterism.methods as m; m.method_names(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
