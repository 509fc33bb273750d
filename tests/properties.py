"""Settings of the property tests: few examples, the same on every run, so that `make test` is fast and repeatable."""

from typing import Any

from hypothesis import HealthCheck, settings


def few(examples: int = 60) -> Any:
    return settings(
        max_examples=examples,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
