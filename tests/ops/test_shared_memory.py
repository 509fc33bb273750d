"""Exchange through shared memory. Threads play the processes: each maps the memory for itself."""

from __future__ import annotations

import os
import random
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from asterism.errors import UserError
from asterism.ops import shared_memory
from asterism.ops.shared_memory import Disconnected, SharedMemory, open_ends


def exchange(size: int, action: Callable[[SharedMemory, int], Any]) -> list[Any]:
    """What `action` returns on each rank."""
    ends = open_ends(size)
    members = [SharedMemory(rank, size, own) for rank, own in enumerate(ends)]
    for own in ends:
        own.close()

    def act(rank: int) -> Any:
        try:
            return action(members[rank], rank)
        finally:
            members[rank].close()

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(act, range(size)))


@pytest.fixture(params=[1 << 24, 64])
def _slot(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slots that hold any of the tensors below, and slots of 64 bytes, which need many pieces."""
    monkeypatch.setattr(shared_memory, "_SLOT", request.param)


def drawn(rank: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(rank))


@pytest.mark.usefixtures("_slot")
@pytest.mark.parametrize("size", [2, 3])
def test_all_get_the_tensors_of_all(size: int) -> None:
    def values(rank: int) -> list[torch.Tensor]:
        return [
            drawn(rank, 7, 11),
            drawn(rank, 5, 4).T,
            torch.tensor(rank),
            torch.tensor([rank == 0, True]),
            torch.zeros(0, 3),
            torch.full((9,), rank, dtype=torch.int64),
        ]

    expected = [torch.stack(same) for same in zip(*map(values, range(size)), strict=True)]
    for found in exchange(size, lambda member, rank: [member.gather(value) for value in values(rank)]):
        for one, other in zip(found, expected, strict=True):
            assert one.dtype == other.dtype
            assert one.equal(other)


@pytest.mark.usefixtures("_slot")
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("count", [1, 2, 1000])  # fewer values than processes: some average nothing
def test_means_are_equal_to_the_bit(size: int, count: int) -> None:
    def average(member: SharedMemory, rank: int) -> torch.Tensor:
        values = drawn(rank, count)
        member.mean_(values)
        return values

    found = exchange(size, average)
    torch.testing.assert_close(found[0], torch.stack([drawn(rank, count) for rank in range(size)]).mean(dim=0))
    assert all(one.equal(found[0]) for one in found)


def test_nobody_overwrites_what_another_has_yet_to_read() -> None:
    """Every rank is late at random times, so that the others run as far ahead of it as they can."""

    def many(member: SharedMemory, rank: int) -> list[list[float]]:
        late, found = random.Random(rank), []
        for number in range(200):
            if late.random() < 0.1:
                time.sleep(0.002)
            value = torch.full((50,), float(10 * number + rank))
            if number % 3:
                found.append(member.gather(value)[:, late.randrange(50)].tolist())
            else:
                member.mean_(value)
                found.append(sorted(set(value.tolist())))
        return found

    expected = [[10.0 * n + rank for rank in range(3)] if n % 3 else [10.0 * n + 1] for n in range(200)]
    assert exchange(3, many) == [expected] * 3


@pytest.mark.parametrize("leaver", [0, 1])
def test_a_process_that_has_ended_is_an_error_for_the_others(leaver: int) -> None:
    def leave(member: SharedMemory, rank: int) -> str:
        if rank == leaver:
            return "left"
        with pytest.raises(Disconnected):
            member.gather(torch.ones(2))
        return "noticed"

    assert exchange(2, leave) == ["left" if rank == leaver else "noticed" for rank in range(2)]


def test_tensors_of_different_sizes_are_noticed() -> None:
    def mismatched(member: SharedMemory, rank: int) -> None:
        with pytest.raises(AssertionError, match="different sizes"):
            member.gather(torch.ones(2 + rank))

    exchange(2, mismatched)


def test_the_default_timeout_of_sockets_does_not_matter() -> None:
    socket.setdefaulttimeout(0.01)
    try:
        assert exchange(2, late_second) == [[0, 1], [0, 1]]
    finally:
        socket.setdefaulttimeout(None)


def late_second(member: SharedMemory, rank: int) -> list[int]:
    time.sleep(0.1 * rank)
    return member.gather(torch.tensor(rank)).tolist()


def test_without_memory_files_an_unnamed_file_is_mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create", raising=False)
    monkeypatch.setattr(shared_memory, "_SLOT", 64)
    assert exchange(2, late_second) == [[0, 1], [0, 1]]


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("failing", [{0}, {1}, {0, 1}])
def test_a_process_that_fails_tells_all_at_their_next_exchange(size: int, failing: set[int]) -> None:
    def act(member: SharedMemory, rank: int) -> str:
        def step() -> None:
            if rank in failing:
                member.fail(f"rank {rank}: no file “ü”")
            member.mean_(torch.ones(5))

        assert member.gather(torch.tensor(rank)).tolist() == list(range(size))
        with pytest.raises(UserError) as caught:
            step()
        return str(caught.value)

    told = exchange(size, act)
    assert told == [f"rank {max(failing)}: no file “ü”"] * size


def test_a_process_that_fails_without_a_sentence() -> None:
    def act(member: SharedMemory, rank: int) -> None:
        with pytest.raises(UserError, match="another process failed"):
            member.fail("") if rank else member.gather(torch.ones(2))

    exchange(2, act)


def test_a_process_that_fails_after_another_has_ended_notices_it() -> None:
    def act(member: SharedMemory, rank: int) -> None:
        if rank == 0:
            with pytest.raises(Disconnected):
                member.fail("no file")

    exchange(2, act)
