import os
import time
from pathlib import Path

import pytest

from asterism.data.sources import listing as module
from asterism.data.sources.listing import Listing, list_images


def touch(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


def paths(listing: Listing) -> list[str]:
    return [os.fsdecode(listing.path(i)) for i in range(len(listing))]


def test_any_nesting_in_sorted_order(tmp_path: Path) -> None:
    names = ["z.png", "a.JPG", "b/2.jpeg", "b/10.webp", "b/c/d/e/deep.TIFF", "a-b/x.bmp", "B/y.gif", "é/ü.png"]
    touch(tmp_path, *names)
    touch(tmp_path, "readme.txt", "b/notes", "b/archive.tar.gz", "jpg", "empty/.keep")
    found = paths(list_images(tmp_path))

    def by_folder(name: str) -> tuple[bytes, bytes]:
        folder, _, file = name.encode().rpartition(b"/")
        return folder, file

    assert found == sorted(names, key=by_folder)


def test_hidden_names_are_skipped(tmp_path: Path) -> None:
    touch(tmp_path, "a.png", ".b.png", "._c.png", ".git/d.png", "__MACOSX/._e.png")
    assert paths(list_images(tmp_path)) == ["a.png"]


def test_links_are_followed_without_loops_or_duplicates(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    touch(root, "real/a.png", "real/deep/b.png")
    touch(outside, "c.png", "inner/d.png")
    (root / "0-alias").symlink_to(root / "real")  # sorts first, but the folder's own path is used
    (root / "far").symlink_to(outside)
    (root / "far-again").symlink_to(outside / "inner")
    (root / "real" / "up").symlink_to(root)
    (outside / "back").symlink_to(root)
    (root / "file.png").symlink_to(outside / "c.png")
    (root / "nowhere.png").symlink_to(tmp_path / "missing.png")
    (root / "self").symlink_to(root / "self")
    assert paths(list_images(root)) == [
        "file.png",
        "nowhere.png",
        "far/c.png",
        "far/inner/d.png",
        "real/a.png",
        "real/deep/b.png",
    ]


def test_unreadable_folders_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path, "open/a.png", "closed/b.png")
    real = os.scandir

    def scandir(path: bytes) -> object:
        if path.endswith(b"closed"):
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    monkeypatch.setattr(module, "REMEMBER_FROM", 1)
    monkeypatch.setattr(module, "settled", lambda stamps, checked_at: True)
    for _ in range(2):  # never cached, so that the second listing warns too
        with pytest.warns(UserWarning, match="closed: no permission"):
            assert paths(list_images(tmp_path)) == ["open/a.png"]


def test_fingerprints_distinguish_listings(tmp_path: Path) -> None:
    prints = set()
    for number, names in enumerate((["a.png"], ["b.png"], ["a/b.png"], ["a.png", "b.png"], ["a/b.png", "a/c.png"])):
        root = tmp_path / str(number)
        touch(root, *names)
        prints.add(list_images(root).fingerprint())
    assert len(prints) == 5
    copy = tmp_path / "copy"
    touch(copy, "a.png", "not an image.txt", "empty/x.txt")
    assert list_images(copy).fingerprint() == list_images(tmp_path / "0").fingerprint()


@pytest.fixture
def caching(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Cache every listing and trust time stamps at once; collect the folders that are read."""
    read: list[bytes] = []
    real = os.scandir

    def scandir(path: bytes = b".") -> "os._ScandirIterator[bytes]":  # type: ignore[name-defined]
        read.append(path)
        return real(path)

    monkeypatch.setattr(module, "REMEMBER_FROM", 1)
    monkeypatch.setattr(module, "settled", lambda stamps, checked_at: True)
    monkeypatch.setattr(os, "scandir", scandir)
    return read


def relist(root: Path, read: list[bytes]) -> tuple[list[str], bool]:
    """The paths, and whether the tree was read to list them."""
    read.clear()
    found = paths(list_images(root))
    return found, bool(read)


def test_a_cached_listing_reads_no_folder(
    tmp_path: Path, caching: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    touch(tmp_path, "a/1.png", "a/b/2.png", "c/3.txt")
    first, read = relist(tmp_path, caching)
    assert read
    again, read = relist(tmp_path, caching)
    assert not read
    assert first == again == ["a/1.png", "a/b/2.png"]
    monkeypatch.chdir(tmp_path)
    assert relist(Path("a/.."), caching) == (first, False)


@pytest.mark.parametrize("change", ["add", "remove", "rename", "add folder", "remove folder", "add to empty", "swap"])
def test_changes_are_detected(tmp_path: Path, caching: list[bytes], change: str) -> None:
    root = tmp_path / "root"
    touch(root, "a/1.png", "a/b/2.png", "a/b/4.png", "c/3.txt")
    relist(root, caching)
    stamps = {folder: folder.stat() for folder in (root, root / "a", root / "a/b", root / "c")}
    time.sleep(0.02)
    if change == "add":
        touch(root, "a/b/new.png")
    elif change == "remove":
        (root / "a/b/2.png").unlink()
    elif change == "rename":
        (root / "a/b/2.png").rename(root / "a/b/5.png")
    elif change == "add folder":
        touch(root, "a/b/d/6.png")
    elif change == "remove folder":
        (root / "c/3.txt").unlink()
        (root / "c").rmdir()
        (root / "a/b/2.png").unlink()
    elif change == "add to empty":
        touch(root, "c/7.png")
    elif change == "swap":
        root.rename(tmp_path / "old")
        touch(root, "other.png")
    # Copying tools reset the modification time; the change must still be detected.
    for folder, status in stamps.items():
        if folder.exists():
            os.utime(folder, ns=(status.st_atime_ns, status.st_mtime_ns))
    found, read = relist(root, caching)
    assert read
    expected = sorted(str(p.relative_to(root)) for p in root.rglob("*.png"))
    assert sorted(found) == expected


def test_changes_behind_links_are_detected(tmp_path: Path, caching: list[bytes]) -> None:
    touch(tmp_path, "root/a.png", "outside/b.png")
    (tmp_path / "root" / "link").symlink_to(tmp_path / "outside")
    relist(tmp_path / "root", caching)
    time.sleep(0.02)
    touch(tmp_path, "outside/c.png")
    assert relist(tmp_path / "root", caching) == (["a.png", "link/b.png", "link/c.png"], True)


def test_a_listing_made_right_after_a_change_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caching: list[bytes]
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(module, "REMEMBER_FROM", 1)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    touch(tmp_path / "root", "a.png")
    list_images(tmp_path / "root")
    assert not (tmp_path / "cache").exists()


def test_a_broken_cache_is_ignored(tmp_path: Path, caching: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    touch(tmp_path / "root", "a.png")
    relist(tmp_path / "root", caching)
    (cache,) = (tmp_path / "cache").rglob("*.npz")
    cache.write_bytes(cache.read_bytes()[:100])
    assert relist(tmp_path / "root", caching) == (["a.png"], True)
