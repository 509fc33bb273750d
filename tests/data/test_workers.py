"""Worker processes that cannot deliver what they made."""

import errno
import os
import signal
import time
from typing import Any

import pytest
from torch.utils.data import Dataset
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from asterism.data.workers import prepare
from asterism.errors import UserError


class _CannotBeSent:
    def __reduce__(self) -> Any:
        raise RuntimeError("unable to resize file to the right size")  # as torch says when shared memory is full


class _Crashes(Dataset[Any]):
    def __getitem__(self, request: int) -> Any:
        if request == 1:
            time.sleep(0.2)  # so that the batch before has been sent
            os.kill(os.getpid(), signal.SIGSEGV)
        return request


class _Tasks(Dataset[Any]):
    def __getitem__(self, request: int) -> Any:
        return _CannotBeSent() if request == 1 else request


@pytest.mark.slow
def test_a_batch_that_cannot_be_sent_ends_the_loop_instead_of_being_awaited() -> None:
    before = time.monotonic()
    found = prepare(_Tasks(), [0, 1, 2], workers=1, prefetch=1, pin_memory=False)
    assert next(found) == 0
    with pytest.raises(UserError, match=r"a data worker died \(exit code 1\).*shared memory"):
        list(found)
    assert time.monotonic() - before < 60


@pytest.mark.slow
def test_a_worker_that_crashes_is_named_whichever_of_its_ends_is_seen_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that breaks is noticed before the system reports the end of the process."""

    def broken(self: Any, timeout: float = 0.0) -> Any:
        raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))

    found = prepare(_Crashes(), [0, 1, 2], workers=1, prefetch=1, pin_memory=False)
    assert next(found) == 0
    monkeypatch.setattr(_MultiProcessingDataLoaderIter, "_try_get_data", broken)
    with pytest.raises(UserError, match=r"a data worker died \(killed by SIGSEGV"):
        list(found)
