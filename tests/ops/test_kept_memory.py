from __future__ import annotations

import pytest
import torch

from asterism.ops import kept_memory as module
from asterism.ops.kept_memory import kept_memory


class Library:
    """Notes what a C library is told."""

    def __init__(self) -> None:
        self.told: list[tuple[int, ...]] = []

    def mallopt(self, setting: int, value: int) -> int:
        self.told.append((setting, value))
        return 1

    def malloc_trim(self, pad: int) -> int:
        self.told.append((pad,))
        return 1


def test_freed_memory_is_kept_inside_and_returned_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library()
    monkeypatch.setattr("ctypes.CDLL", lambda name: library)

    def fail() -> None:
        with kept_memory(torch.device("cpu")):
            assert library.told == [(module._MMAP_THRESHOLD, 1 << 25), (module._TRIM_THRESHOLD, (1 << 31) - 1)]
            library.told.clear()
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert library.told == [(module._TRIM_THRESHOLD, 1 << 26), (0,)]


def test_other_devices_and_libraries_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[object] = []
    monkeypatch.setattr("ctypes.CDLL", lambda name: opened.append(name) or object())
    with kept_memory(torch.device("cuda")):
        assert opened == []
    with kept_memory(torch.device("cpu")):
        assert opened == [None]
