import errno
import os
import sys
import threading
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

from asterism.cli import app, program
from asterism.errors import explain_system_error
from asterism.inputs import user_path


@pytest.mark.parametrize(
    "number",
    [errno.ENOSPC, errno.EROFS, errno.ENOTDIR, errno.ENAMETOOLONG, errno.EACCES, errno.EIO, errno.ESTALE, errno.EFBIG],
)
def test_errors_of_the_file_system_name_the_place_and_a_fix(number: int) -> None:
    said = explain_system_error(OSError(number, os.strerror(number), "/data/out"))
    assert said is not None
    assert "/data/out" in said
    assert ";" in said
    assert "\n" not in said


def test_errors_of_libraries_are_recognised_by_their_text() -> None:
    assert "the disk is full" in str(
        explain_system_error(RuntimeError("I/O error: No space left on device (os error 28)"))
    )
    assert "read-only" in str(explain_system_error(RuntimeError("write failed: Read-only file system")))
    assert "not enough memory" in str(explain_system_error(MemoryError()))
    assert explain_system_error(ZeroDivisionError("division by zero")) is None


@pytest.mark.parametrize("name", ["excepthook", "unraisablehook"])
def test_failures_in_threads_and_destructors_of_libraries_are_sentences(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    others: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", others.append)
    monkeypatch.setattr(threading, "excepthook", others.append)
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    monkeypatch.setattr(program, "app", lambda: None)
    program.main()
    hook = getattr(threading if name == "excepthook" else sys, name)
    hook(SimpleNamespace(exc_value=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "out/events")))
    assert "Warning: the disk is full (No space left on device: out/events)" in " ".join(
        capsys.readouterr().err.split()
    )
    hook(bug := SimpleNamespace(exc_value=ZeroDivisionError()))
    assert others == [bug]


def test_memory_that_cannot_be_reserved_is_a_sentence() -> None:
    with pytest.raises(RuntimeError) as error:
        torch.empty(2**60, dtype=torch.uint8)
    assert "not enough memory" in str(explain_system_error(error.value))


@pytest.mark.parametrize("place", ["a", "a/run"])
def test_links_in_a_circle(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a").symlink_to("b"), Path("b").symlink_to("a")
    ended = CliRunner().invoke(app, ["pretrain", "mae", "--data", "scenes:count=8", "--out", place, "trainer.steps=1"])
    assert ended.exit_code == 2
    assert "links point to each other in a circle" in " ".join(ended.stderr.split())


def test_home_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert user_path("~/photos") == tmp_path / "photos"
    assert user_path("photos") == Path("photos")
