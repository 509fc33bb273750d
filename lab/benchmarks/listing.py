"""How long it takes to list a large tree of images, and how much memory the list needs.

    python -m lab.benchmarks.listing                    # 200,000 files
    python -m lab.benchmarks.listing --files 1000000

Makes a tree of empty files in a temporary folder, then lists it in three ways: with our single pass, with our listing
cached on disk, and with `Path.rglob`. Times are from the same run, on the same tree, with a warm file cache.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from asterism.data.sources.listing import list_images
from asterism.images.decode import SUFFIXES

Result = TypeVar("Result")
_PER_FOLDER = 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=200_000)
    files = parser.parse_args().files
    with tempfile.TemporaryDirectory() as place:
        os.environ["XDG_CACHE_HOME"] = str(Path(place) / "cache")
        root = Path(place) / "images"
        seconds, _ = timed(lambda: make_tree(root, files))
        print(f"made {files:,} files in {-(-files // _PER_FOLDER):,} folders: {seconds:.1f} s")
        time.sleep(2.5)  # a tree that changed within two seconds is not cached

        first, listing = timed(lambda: list_images(root))
        assert len(listing) == files
        cached, again = timed(lambda: list_images(root))
        assert again.fingerprint() == listing.fingerprint()
        naive, paths = timed(lambda: sorted(p for p in root.rglob("*") if p.is_file() and p.suffix in SUFFIXES))
        assert len(paths) == files
        report("first listing", first, files, naive)
        report("remembered listing", cached, files, naive)
        report("Path.rglob", naive, files, naive)
        print(f"memory kept: {listing.nbytes / files:.1f} bytes per file; {size_of_paths(root):.0f} as Path objects")


def make_tree(root: Path, files: int) -> None:
    for start in range(0, files, _PER_FOLDER):
        folder = root / f"{start // _PER_FOLDER // 100:03}" / f"class-{start // _PER_FOLDER:06}"
        folder.mkdir(parents=True)
        for number in range(start, min(start + _PER_FOLDER, files)):
            os.close(os.open(folder / f"image-{number:08}.jpg", os.O_CREAT | os.O_WRONLY))


def timed(work: Callable[[], Result]) -> tuple[float, Result]:
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def report(title: str, seconds: float, files: int, naive: float) -> None:
    print(f"{title:20} {seconds:7.2f} s  {1e6 * seconds / files:6.2f} µs per file  {naive / seconds:5.1f}× Path.rglob")


def size_of_paths(root: Path) -> float:
    """Bytes per file of a list of Path objects, measured on one folder."""
    folder = next(root.glob("*/*"))
    tracemalloc.start()
    paths = list(folder.iterdir())
    size = tracemalloc.get_traced_memory()[0] / len(paths)
    tracemalloc.stop()
    return size


if __name__ == "__main__":
    main()
