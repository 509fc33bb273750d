"""Who waits prints for whom; only a process without a sign of life is given up, however long another one works."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest

from asterism.errors import UserError
from asterism.ops import vigil
from asterism.ops.vigil import Vigil, patience

_SECOND = 0.02  # of the tests


class Store(dict[str, str]):
    """The meeting point; `answers` is cleared while its process is stopped."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = threading.Event()
        self.answers.set()

    def set(self, key: str, value: str) -> None:
        self.answers.wait()
        self[key] = value

    def check(self, keys: list[str]) -> bool:
        return all(key in self for key in keys)

    def multi_get(self, keys: list[str]) -> list[str]:
        self.answers.wait()
        return [self[key] for key in keys]


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    for name, seconds in {"SOON": 10, "_BEAT": 2, "_LOOK": 1, "_QUIET": 5}.items():
        monkeypatch.setattr(vigil, name, seconds * _SECOND)
    monkeypatch.setenv("ASTERISM_PATIENCE", str(30 * _SECOND / 60))
    shared = Store()
    yield shared
    shared.answers.set()


@pytest.fixture
def member(store: Store) -> Iterator[Callable[[int], tuple[Vigil, list[str]]]]:
    begun: list[Vigil] = []

    def begin(rank: int) -> tuple[Vigil, list[str]]:
        reasons: list[str] = []
        begun.append(Vigil(rank, 2, store, lambda ranks, reason: reasons.append(f"{ranks} {reason}")))
        begun[-1].begin()
        return begun[-1], reasons

    yield begin
    store.answers.set()
    for each in begun:
        each.end()


Member = Callable[[int], tuple[Vigil, list[str]]]


def test_one_that_works_for_long_is_named_and_awaited(member: Member, capsys: pytest.CaptureFixture[str]) -> None:
    (first, given_up), _ = member(0), member(1)
    with first.exchange():
        time.sleep(60 * _SECOND)  # twice as long as a silent one would be awaited
    assert not given_up
    said = capsys.readouterr().err
    assert "Waiting for rank 1 of 2 since" in said
    assert "is at work in" in said


def test_one_that_is_silent_is_given_up(member: Member, capsys: pytest.CaptureFixture[str]) -> None:
    (first, given_up), (second, _) = member(0), member(1)
    second.end()
    with first.exchange():
        time.sleep(80 * _SECOND)
    assert "rank 1" in capsys.readouterr().err
    assert given_up[0].startswith("[1] rank 1 of 2 showed no sign of life for ")


def test_one_that_is_silent_in_the_middle_of_an_exchange(member: Member) -> None:
    (first, given_up), (second, _) = member(0), member(1)
    with first.exchange(), second.exchange():
        time.sleep(5 * _SECOND)
        second.end()
        time.sleep(80 * _SECOND)
    assert given_up[0].startswith("[1]")


def test_the_process_with_the_meeting_point_is_silent(
    member: Member, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    (first, _), (second, given_up) = member(0), member(1)
    first.end()
    store.answers.clear()
    with second.exchange():
        time.sleep(80 * _SECOND)
    assert "rank 0 shows no sign of life" in capsys.readouterr().err
    assert given_up[0].startswith("[0]")


def test_nobody_is_given_up_without_an_exchange(member: Member, capsys: pytest.CaptureFixture[str]) -> None:
    (_, given_up), (second, _) = member(0), member(1)
    second.end()
    time.sleep(60 * _SECOND)
    assert not given_up
    assert not capsys.readouterr().err


def test_one_that_never_starts(member: Member, capsys: pytest.CaptureFixture[str]) -> None:
    first, _ = member(0)
    with pytest.raises(UserError, match=r"rank 1 of 2 did not start within .* \(ASTERISM_PATIENCE\)"):
        first.await_all(timedelta(seconds=30 * _SECOND))
    assert "Waiting for rank 1 of 2 to start" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["soon", "0", "-1", "nan", "inf"])
def test_patience_is_a_number_of_minutes(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASTERISM_PATIENCE", text)
    with pytest.raises(UserError, match=f"ASTERISM_PATIENCE = '{text}' must be a number of minutes"):
        patience()
