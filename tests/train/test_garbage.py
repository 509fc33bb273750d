from __future__ import annotations

import gc
import weakref

import pytest

from asterism.train.garbage import search_new_objects_only


class Node:
    """Refers to itself, so that only a search finds it."""

    def __init__(self) -> None:
        self.own = self


def test_only_new_objects_are_searched() -> None:
    """Unreachable ones from before go at the start, unreachable new ones at any time, the rest is left alone."""
    before = weakref.ref(Node())
    held = Node()
    left = weakref.ref(held)
    with search_new_objects_only():
        assert before() is None
        del held
        new = weakref.ref(Node())
        gc.collect()
        assert new() is None
        assert left() is not None
    gc.collect()
    assert left() is None


def test_an_error_ends_it() -> None:
    def fail() -> None:
        with search_new_objects_only():
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert gc.get_freeze_count() == 0
