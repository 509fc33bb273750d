"""Writing: whole or not at all, private until complete, and clean after a kill."""

import contextlib
import errno
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from asterism import files
from asterism.files import discard, filling, locked, open_for_appending, replacing, scratch_folder, write_text


def test_the_new_file_replaces_the_old_one(tmp_path):
    path = tmp_path / "deep" / "a.txt"
    with replacing(path) as temporary:
        temporary.write_text("one")
    with replacing(path) as temporary:
        temporary.write_text("two")
        assert path.read_text() == "one"
    assert path.read_text() == "two"
    assert list(path.parent.iterdir()) == [path]


def test_an_error_changes_nothing(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")

    def fail():
        with replacing(path) as temporary:
            temporary.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_files_have_the_usual_permissions(tmp_path):
    (tmp_path / "plain").touch()
    with replacing(tmp_path / "a.safetensors") as temporary:
        save_file({"a": torch.zeros(1)}, temporary)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert len(modes) == 1


# --- folders ----------------------------------------------------------------------------------------------------------


def content(folder: Path) -> dict[str, str]:
    return {str(file.relative_to(folder)): file.read_text() for file in folder.rglob("*") if file.is_file()}


def test_a_new_folder_appears_complete(tmp_path):
    target = tmp_path / "deep" / "out"
    with filling(target) as folder:
        (folder / "masks").mkdir()
        (folder / "masks" / "a.txt").write_text("a")
        assert not target.exists()
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert content(tmp_path) == {"deep/out/masks/a.txt": "a"}
    (tmp_path / "plain").mkdir()
    assert target.stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_other_files_of_a_folder_stay(tmp_path):
    target = tmp_path / "out"
    target.mkdir()
    (target / "a.txt").write_text("old")
    (target / "b.txt").write_text("old")
    with filling(target) as folder:
        (folder / "a.txt").write_text("new")
        assert content(target)["a.txt"] == "old"
    assert content(tmp_path) == {"out/a.txt": "new", "out/b.txt": "old"}


def test_a_folder_in_the_way_is_noticed_before_anything_moves(tmp_path):
    (tmp_path / "out" / "b").mkdir(parents=True)

    def fill():
        with filling(tmp_path / "out") as folder:
            (folder / "a").write_text("new")
            (folder / "b").write_text("new")

    with pytest.raises(IsADirectoryError):
        fill()
    assert content(tmp_path) == {}


@pytest.mark.parametrize("exists", [True, False])
def test_a_failed_folder_leaves_nothing_not_even_its_parents(tmp_path, exists):
    target = tmp_path / "new" / "out" if not exists else tmp_path / "out"
    if exists:
        target.mkdir()

    def fill():
        with filling(target) as folder:
            (folder / "a").write_text("new")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fill()
    assert [path.name for path in tmp_path.rglob("*")] == (["out"] if exists else [])


# --- every system call may fail ---------------------------------------------------------------------------------------

CALLS = ("open", "mkdir", "chmod", "fsync", "rename", "replace", "scandir", "unlink", "rmdir")


class FailingCalls:
    """Calls of the operating system, of which one fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, failing: int) -> None:
        self.count = 0
        for name in CALLS:
            monkeypatch.setattr(os, name, self._counted(getattr(os, name), failing))

    def _counted(self, call, failing: int):
        def counted(*words, **more):
            self.count += 1
            if self.count == failing:
                raise OSError(errno.EIO, os.strerror(errno.EIO), words[0] if words else None)
            return call(*words, **more)

        return counted


def open_files() -> int:
    listed = Path("/proc/self/fd")
    return len(list(listed.iterdir())) if listed.exists() else 0


def write_one(folder: Path) -> None:
    write_text(folder / "a.txt", "new")


def write_many(folder: Path) -> None:
    with filling(folder / "many") as place:
        for name in "xyz":
            (place / name).write_text("new")


@pytest.mark.parametrize("write", [write_one, write_many])
def test_a_write_is_whole_or_has_not_happened_wherever_it_fails(tmp_path, monkeypatch, write):
    old = {"a.txt": "old"}
    new = (
        {"a.txt": "new"} if write is write_one else {"a.txt": "old", "many/x": "new", "many/y": "new", "many/z": "new"}
    )
    ends = []
    for failing in range(1, 30):
        folder = tmp_path / str(failing)
        folder.mkdir()
        (folder / "a.txt").write_text("old")
        before = open_files()
        with monkeypatch.context() as patch:
            calls = FailingCalls(patch, failing)
            with contextlib.suppress(OSError):
                write(folder)
        whole = {name: text for name, text in content(folder).items() if ".asterism-tmp" not in name}
        assert whole in (old, new), failing
        assert open_files() == before, f"call {failing} leaks a file"
        ends.append(whole == new)
        if calls.count < failing:
            break
    assert ends[-1]
    assert ends.count(False) > 3


# --- temporary files --------------------------------------------------------------------------------------------------


def test_temporary_files_are_private_and_unpredictable(tmp_path):
    names = set()
    for _ in range(4):
        with replacing(tmp_path / "a.txt") as temporary:
            assert stat.S_IMODE(temporary.stat().st_mode) == 0o600
            names.add(temporary.name)
    assert len(names) == 4


def test_a_planted_link_is_not_followed(tmp_path, monkeypatch):
    precious = tmp_path / "precious"
    precious.write_text("precious")
    tokens = iter(["guessed", "new"])
    monkeypatch.setattr("asterism.files.secrets.token_hex", lambda _: next(tokens))
    (tmp_path / ".a.txt.guessed.asterism-tmp").symlink_to(precious)
    with pytest.raises(FileExistsError):
        write_text(tmp_path / "a.txt", "new")
    write_text(tmp_path / "a.txt", "new")
    assert precious.read_text() == "precious"
    (tmp_path / "lock").symlink_to(precious)
    with pytest.raises(OSError, match="symbolic links"), locked(tmp_path / "lock"):
        pass


def killed_while_writing(target: Path) -> None:
    """Another process, killed in the middle of `replacing` and of `filling`."""
    script = """
import os, signal, sys
from pathlib import Path
from asterism.files import filling, replacing
target = Path(sys.argv[1])
with replacing(target) as file, filling(target.with_name("out")) as folder:
    file.write_text("half")
    (folder / "half").write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", script, str(target)], check=False)
    assert done.returncode == -signal.SIGKILL


def test_the_leftovers_of_a_kill_are_removed_by_the_next_writer(tmp_path):
    killed_while_writing(tmp_path / "a.txt")
    assert len(list(tmp_path.iterdir())) == 2
    with replacing(tmp_path / "b.txt") as other:  # of another target: stays, although it looks alike
        other.write_text("mine")
        write_text(tmp_path / "a.txt", "new")
        write_many(tmp_path)
        assert other.exists()
        with filling(tmp_path / "out"):
            pass
    assert content(tmp_path) == {"a.txt": "new", "b.txt": "mine"} | {f"many/{name}": "new" for name in "xyz"}


def test_writers_of_the_same_file_do_not_delete_each_others_work(tmp_path):
    path = tmp_path / "a.txt"
    with replacing(path) as first:
        first.write_text("first")
        with replacing(path) as second:
            second.write_text("second")
        assert path.read_text() == "second"
    assert path.read_text() == "first"


@pytest.mark.parametrize("name", ["x" * 250, "ф" * 120, "星" * 80, "a\nb", "\udcff", " ", "-rf"])
def test_every_name_that_the_file_system_takes_can_be_written(tmp_path, name):
    write_text(tmp_path / name, "text")
    assert os.listdir(tmp_path) == [name]  # noqa: PTH208


def test_errors_name_the_target_not_the_temporary_file(tmp_path):
    with pytest.raises(OSError, match="Not a directory") as caught, replacing(tmp_path / "a.txt") as temporary:
        (temporary / "below").write_text("no")
    assert caught.value.filename == str(tmp_path / "a.txt" / "below")


def test_appending_goes_on_with_a_file_and_refuses_a_link(tmp_path):
    for line in (b"one\n", b"two\n"):
        with open_for_appending(tmp_path / "log") as file:
            file.write(line)
    assert (tmp_path / "log").read_bytes() == b"one\ntwo\n"
    for target in ("log", "nothing"):
        (tmp_path / "link").unlink(missing_ok=True)
        (tmp_path / "link").symlink_to(tmp_path / target)
        with pytest.raises(OSError, match="it is a link, which is not followed"):
            open_for_appending(tmp_path / "link")
    assert not (tmp_path / "nothing").exists()


def test_a_folder_that_another_process_deletes_before_it_is_locked_is_made_again(tmp_path, monkeypatch):
    """To the other process it looks like what a killed one has left."""
    opened, deleted = os.open, []

    def late(path, flags, *mode, **options):
        if flags & os.O_DIRECTORY and not deleted:
            deleted.append(path)
            Path(path).rmdir()
        return opened(path, flags, *mode, **options)

    monkeypatch.setattr(os, "open", late)
    with scratch_folder(tmp_path / "out") as folder:
        assert folder.is_dir()
    assert deleted
    assert not folder.exists()


def test_everything_is_on_the_disk_before_it_gets_its_name(tmp_path, monkeypatch):
    """Else a power loss leaves a name without content, and afterwards the names must be there as well."""
    flushed, real = [], files.flush

    def flush(path):
        assert (tmp_path / "out").exists() == (path == tmp_path), path
        flushed.append(path.name)
        real(path)

    monkeypatch.setattr(files, "flush", flush)
    with filling(tmp_path / "out") as folder:
        (folder / "deep").mkdir()
        for name in ("a", "deep/b"):
            (folder / name).write_text("text")
    assert len(flushed) == 5  # the folder and what is in it, then the folder above
    assert {"a", "b", "deep", tmp_path.name} < set(flushed)


def test_a_close_that_fails_is_no_failure_of_what_was_written(tmp_path, monkeypatch):
    close = os.close

    def failing(handle):
        close(handle)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "close", failing)
    write_text(tmp_path / "a", "text")
    with locked(tmp_path / "lock"):
        pass
    assert (tmp_path / "a").read_text() == "text"


def test_a_write_without_a_name_gets_that_of_the_target(tmp_path):
    with pytest.raises(OSError, match="No space left") as error, filling(tmp_path / "out"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert error.value.filename == str(tmp_path / "out")


def test_a_kill_leaves_no_part_of_a_folder_that_was_being_deleted(tmp_path, monkeypatch):
    (tmp_path / "step" / "deep").mkdir(parents=True)
    monkeypatch.setattr(files.shutil, "rmtree", lambda path: None)  # killed here
    discard(tmp_path / "step")
    (left,) = tmp_path.iterdir()
    assert files.is_temporary(left)
    monkeypatch.undo()
    files.delete_leftovers(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_new_folder_that_cannot_be_opened_is_not_left(tmp_path, monkeypatch):
    opened = os.open

    def stale(path, flags, *more):
        if flags & os.O_DIRECTORY:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))
        return opened(path, flags, *more)

    monkeypatch.setattr(os, "open", stale)
    with pytest.raises(OSError, match="Stale file handle"), scratch_folder(tmp_path / "out"):
        pass
    assert not list(tmp_path.iterdir())
