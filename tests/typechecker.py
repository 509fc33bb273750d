"""The run-time type checker of `make test-all`: an int is a float, as in Python's own typing rules.

The checks of a function are written at its first call, because a test calls dozens of the package's four thousand.
"""

import functools
from collections.abc import Callable
from typing import Any

from beartype import BeartypeConf, beartype

_with_checks = beartype(conf=BeartypeConf(is_pep484_tower=True))


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    made = functools.cache(lambda: _with_checks(function))

    @functools.wraps(function)
    def checks(*args: Any, **kwargs: Any) -> Any:
        return made()(*args, **kwargs)

    return checks
