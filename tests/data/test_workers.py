"""Worker processes that cannot deliver what they made."""

import time
from typing import Any

import pytest
from torch.utils.data import Dataset

from asterism.data.workers import prepare
from asterism.errors import UserError


class _CannotBeSent:
    def __reduce__(self) -> Any:
        raise RuntimeError("unable to resize file to the right size")  # as torch says when shared memory is full


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
