"""Folders as a failing disk presents them: read-only, full, or with files that cannot grow."""

import contextlib
import functools
import os
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.campaigns.campaign import Unavailable


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """A read-only mount where mounts are allowed, else a folder without write permission (which root ignores)."""
    if _can_mount():
        with _mounted(folder, ["--bind", str(folder), str(folder)]):
            _mount("-o", "remount,bind,ro", str(folder))
            yield
    elif os.geteuid() == 0:
        raise Unavailable("root without the right to mount can write everywhere")
    else:
        places = [folder, *(path for path in folder.rglob("*") if path.is_dir())]
        for place in places:
            place.chmod(0o555)
        try:
            yield
        finally:
            for place in places:
                place.chmod(0o755)


@contextlib.contextmanager
def small_disk(folder: Path, kilobytes: int) -> Iterator[None]:
    """A file system of its own with the folder's content and this much space left."""
    if not _can_mount():
        raise Unavailable("a small file system needs the right to mount")
    with tempfile.TemporaryDirectory() as name:
        content = Path(name) / "content"
        shutil.copytree(folder, content, symlinks=True)
        used = sum(-(-path.lstat().st_size // 4096) * 4 + 4 for path in content.rglob("*"))
        with _mounted(folder, ["-t", "tmpfs", "-o", f"size={used + kilobytes}k", "tmpfs", str(folder)]):
            shutil.copytree(content, folder, symlinks=True, dirs_exist_ok=True)
            yield


def no_large_files(limit: int = 2048) -> None:
    """In the process of a command: no file may grow beyond `limit` bytes (EFBIG, on every POSIX system)."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))


@contextlib.contextmanager
def _mounted(place: Path, words: list[str]) -> Iterator[None]:
    _mount(*words)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def _mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True, capture_output=True)


@functools.cache
def _can_mount() -> bool:
    if os.geteuid() != 0 or shutil.which("mount") is None:
        return False
    with tempfile.TemporaryDirectory() as name:
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", name], capture_output=True, check=False
        )
        if done.returncode == 0:
            subprocess.run(["umount", "--lazy", name], check=False)
        return done.returncode == 0
