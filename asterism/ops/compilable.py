"""Functions that training may replace with compiled code: arithmetic on tensors, without choices that depend on values.

A decorated function runs as written, except inside `compiled_functions`. There it is compiled at its first call, as one
graph; sizes that change between calls, such as the number of masked patches, become symbols instead of new code.

>>> @compilable
... def squared_norm(x):
...     return (x * x).sum()
>>> with compiled_functions(backend="eager"):
...     float(squared_norm(torch.tensor([3.0, 4.0])))
25.0
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")

_backends: list[str] = []  # of the contexts that we are in


def compilable(function: Callable[P, R]) -> Callable[P, R]:
    """Mark a function for `compiled_functions`."""

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        if not _backends:
            return function(*args, **kwargs)
        return _compiled(function, _backends[-1])(*args, **kwargs)

    return called


@contextlib.contextmanager
def compiled_functions(backend: str = "inductor") -> Iterator[None]:
    """Decorated functions are compiled in here."""
    _backends.append(backend)
    try:
        yield
    finally:
        _backends.pop()


@functools.cache
def _compiled(function: Callable[P, R], backend: str) -> Callable[P, R]:
    return torch.compile(function, fullgraph=True, backend=backend)
