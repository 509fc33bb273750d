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
