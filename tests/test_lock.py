"""A lock names its owner, excludes other processes and threads, and vanishes with its process."""

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from asterism.errors import UserError
from asterism.lock import check_unowned, file_lock, folder_lock, owned

_HOLD = """
import sys, time
from pathlib import Path
from asterism.lock import folder_lock, owned
folder = Path(sys.argv[1])
with owned(folder_lock(folder), folder):
    print("owned", flush=True)
    time.sleep(600)
"""


def holder(folder: Path) -> subprocess.Popen[bytes]:
    """Another process that owns the folder."""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    process = subprocess.Popen([sys.executable, "-c", _HOLD, str(folder)], stdout=subprocess.PIPE, env=environment)
    assert process.stdout is not None
    assert process.stdout.readline() == b"owned\n"
    return process


def test_the_second_process_is_told_who_owns_the_folder(tmp_path: Path) -> None:
    lock = folder_lock(tmp_path)
    with holder(tmp_path) as other:
        named = rf"{tmp_path} is being written by process {other.pid} on \S+ since 20\d\d-.* UTC \(-c .*\)"
        with pytest.raises(UserError, match=named):
            check_unowned(lock, tmp_path)
        with pytest.raises(UserError, match=named), owned(lock, tmp_path):
            pass
        other.send_signal(signal.SIGKILL)
        other.wait()
    assert lock.exists()  # it was killed; the file alone locks nothing
    check_unowned(lock, tmp_path)
    with owned(lock, tmp_path):
        assert json.loads(lock.read_text())["pid"] == os.getpid()
    assert not lock.exists()


def test_the_same_process_does_not_own_a_folder_twice(tmp_path: Path) -> None:
    lock = folder_lock(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path)
    with owned(lock, tmp_path):
        for way in (lock, folder_lock(tmp_path / "link")):
            with pytest.raises(UserError, match="is being written by this process"), owned(way, tmp_path):
                pass
            with pytest.raises(UserError, match="is being written by this process"):
                check_unowned(way, tmp_path)
        assert lock.exists()
    with owned(lock, tmp_path):
        pass


def test_checking_does_not_release_the_lock_of_this_process(tmp_path: Path) -> None:
    """A process that closes any descriptor of a file loses its record locks on it."""
    lock = folder_lock(tmp_path)
    with owned(lock, tmp_path):
        with pytest.raises(UserError):
            check_unowned(lock, tmp_path)
        code = "import sys, pathlib, asterism.lock as l; p = pathlib.Path(sys.argv[1]); l.check_unowned(p, p)"
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
        call = [sys.executable, "-c", code, str(lock)]
        found = subprocess.run(call, env=environment, capture_output=True, text=True, check=False)
        assert f"is being written by process {os.getpid()}" in found.stderr


def test_a_damaged_lock_file_is_no_obstacle(tmp_path: Path) -> None:
    lock = file_lock(tmp_path / "photos.parquet")
    assert lock.name == ".photos.parquet.lock"
    for content in (b"", b"[]", b"\xff", b"[" * 100_000, b'{"pid": 1}'):
        lock.write_bytes(content)
        check_unowned(lock, tmp_path)
        with owned(lock, tmp_path):
            pass


def test_a_lock_that_cannot_name_its_owner_still_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with owned(lock := folder_lock(tmp_path), tmp_path), pytest.raises(UserError, match="by this process"):
        check_unowned(lock, tmp_path)
    assert not lock.exists()
