"""A disk that fails while files are read: tried again, then a clear end, never a skipped image."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from asterism import inputs
from asterism.errors import UserError
from asterism.images.bad_image import BadImage
from asterism.images.decode import decode
from asterism.inputs import Unreadable, read_regular


@pytest.fixture
def fail(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """Make the next calls of `os.open` fail."""
    monkeypatch.setattr(inputs, "_WAITS", (0.0, 0.0))
    real = os.open

    def prepare(number: int, times: int) -> None:
        left = [number] * times

        def opened(path: Any, *words: Any, **more: Any) -> int:
            if left:
                raise OSError(left.pop(), "failed", str(path))
            return real(path, *words, **more)

        monkeypatch.setattr(os, "open", opened)

    return prepare


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "a.png").write_bytes(b"content")
    return tmp_path / "a.png"


def test_a_short_failure_is_not_noticed(file: Path, fail: Callable[[int, int], None]) -> None:
    fail(errno.EIO, 2)
    assert read_regular(file, 100) == b"content"


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EMFILE, errno.ENOMEM])
def test_a_long_failure_ends_the_command_instead_of_skipping_the_image(
    file: Path, fail: Callable[[int, int], None], number: int
) -> None:
    fail(number, 3)
    with pytest.raises(UserError, match=r"a\.png.*run the command again"):
        decode(file, "a.png")


def test_what_is_wrong_with_one_file_is_a_bad_image(file: Path, fail: Callable[[int, int], None]) -> None:
    fail(errno.EACCES, 1)
    with pytest.raises(BadImage, match="cannot be read"):
        decode(file, "a.png")
    with pytest.raises(Unreadable, match="more than the limit"):
        read_regular(file, 3)
