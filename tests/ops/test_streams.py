"""The register of draws: no number twice for one key, and no draw with a number that is not in it."""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import asterism
from asterism.methods import method_names
from asterism.ops import streams

PACKAGE = Path(asterism.__file__).parent
NAMESPACES = {name: each for name, each in vars(streams).items() if isinstance(each, type)}


def numbers(namespace: type) -> dict[str, int]:
    return {name: value for name, value in vars(namespace).items() if not name.startswith("_")}


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_no_two_draws_of_one_key_have_the_same_number(namespace: str) -> None:
    used = Counter(numbers(NAMESPACES[namespace]).values())
    assert not [number for number, uses in used.items() if uses > 1]


@pytest.mark.parametrize("method", [name for name in method_names() if name.capitalize() in NAMESPACES])
def test_a_methods_draws_are_not_those_of_a_view(method: str) -> None:
    assert min(numbers(NAMESPACES[method.capitalize()]).values()) >= streams.MOST_VIEWS


def test_every_number_that_is_folded_is_registered() -> None:
    loose = {f"{path.relative_to(PACKAGE)}: {call}" for path in PACKAGE.rglob("*.py") for call in loose_folds(path)}
    assert loose == set()


def loose_folds(path: Path) -> Iterator[str]:
    """Calls of `fold` and `fold_each` with a number, or with a constant of the module."""
    tree = ast.parse(path.read_text())
    constants = {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign)
        for name in node.targets
        for target in ast.walk(name)
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("fold", "fold_each"):
            for argument in node.args:
                number = isinstance(argument, ast.Constant) and isinstance(argument.value, int)
                if number or (isinstance(argument, ast.Name) and argument.id in constants):
                    yield ast.unparse(node)
