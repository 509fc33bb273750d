"""Images per second and core that our loader turns into DINO's 2+8 views, next to torch's DataLoader with torchvision.

    python -m lab.benchmarks.loader [--count 64] [--repeats 3] [--images photos/]

From files to batches of uint8, decoding included: 2 views of 224 pixels and 8 of 96. Both sides run in one process
without workers, so that the CPU time of one core is counted; batches alternate and the best of each side counts. Files
are in a folder with one subfolder per class, and in a tar shard. torchvision reads the folder with ImageFolder and the
shard with `tarfile`, one member after the other; ours reads both in random order.

Then a shard alone: all images as bytes through our index, in order and in random order, next to one sequential read of
the same file. From the disk, with the file evicted from the system's cache before each reading, and from that cache.
"""

from __future__ import annotations

import argparse
import io
import os
import random
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset
from torchvision.datasets import ImageFolder

from asterism.data import DataConfig, open_source, view_loader
from asterism.data.sources.shards import Shards
from lab.benchmarks.views import PILBlur, baseline_views, decode_with_pillow, encoded_images, our_views

_BATCH = 8
_SHARD_COPIES = 20  # of the images, in the shard that is only read


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, help="folder of JPEG files (default: synthetic images, 500 × 375)")
    parser.add_argument("--count", type=int, default=64, help="number of images")
    parser.add_argument("--repeats", type=int, default=3, help="timed passes of each side")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        os.environ["XDG_CACHE_HOME"] = str(Path(place) / "cache")
        folder, shard, long_shard = write(Path(place), encoded_images(options.images, options.count))
        for title, ours, theirs in (
            ("folder", lambda: ours_from(folder), lambda: torchvision_from_folder(folder)),
            ("shard", lambda: ours_from(shard), lambda: torchvision_from_shard(shard)),
        ):
            race(title, {"asterism": ours, "DataLoader, torchvision v2": theirs}, options.repeats)
        read_shard(long_shard, options.repeats)


def write(place: Path, files: list[bytes]) -> tuple[Path, Path, Path]:
    """The images as a folder and as a shard, and a shard with many copies of each."""
    folder, shard, long_shard = place / "images", place / "short" / "train.tar", place / "long" / "train.tar"
    for number, data in enumerate(files):
        path = folder / f"class-{number % 4}" / f"{number:06}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    for target, copies in ((shard, 1), (long_shard, _SHARD_COPIES)):
        target.parent.mkdir()
        with tarfile.open(target, "w") as tar:
            for number, data in enumerate(files * copies):
                member = tarfile.TarInfo(f"{number:06}.jpg")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    return folder, shard, long_shard


def ours_from(path: Path) -> int:
    source = open_source(path)
    config = DataConfig(path=str(path), workers=0)
    steps = len(source) // _BATCH
    loader = view_loader(source, our_views(), config, batch_size=_BATCH, seed=0, steps=steps)
    return sum(len(batch.places) for batch in loader)


class MultiCrop:
    """DINO's views of one image with torchvision's transforms."""

    def __init__(self) -> None:
        self._transforms = baseline_views(PILBlur())

    def __call__(self, image: Any) -> list[torch.Tensor]:
        return [transform(image) for transform in self._transforms]


def torchvision_from_folder(folder: Path) -> int:
    def open_image(path: str) -> Any:
        return decode_with_pillow(Path(path).read_bytes())

    images = ImageFolder(str(folder), transform=MultiCrop(), loader=open_image)
    return sum(len(labels) for _, labels in DataLoader(images, batch_size=_BATCH, shuffle=True))


class TarImages(IterableDataset[Any]):
    """The members of a tar file, one after the other."""

    def __init__(self, shard: Path) -> None:
        self._shard, self._views = shard, MultiCrop()

    def __iter__(self) -> Iterator[Any]:
        with tarfile.open(self._shard) as tar:
            for member in tar:
                file = tar.extractfile(member)
                assert file is not None
                yield self._views(decode_with_pillow(file.read()))


def torchvision_from_shard(shard: Path) -> int:
    return sum(len(views[0]) for views in DataLoader(TarImages(shard), batch_size=_BATCH))


def race(title: str, sides: dict[str, Callable[[], int]], repeats: int) -> None:
    best = dict.fromkeys(sides, float("inf"))
    for number in range(repeats + 1):
        for name, run in sides.items():
            torch.manual_seed(number)
            random.seed(number)
            start = time.process_time()
            images = run()
            if number:
                best[name] = min(best[name], (time.process_time() - start) / images)
    print(f"\n{title}")
    for name, seconds in best.items():
        print(f"  {name:<28} {1e3 * seconds:7.2f} ms/image  {1 / seconds:7.1f} images/s per core")
    ours, theirs = best.values()
    print(f"  asterism is {theirs / ours:.2f} times as fast", flush=True)


def read_shard(shard: Path, repeats: int) -> None:
    """Bytes per second: from the disk, where the shard is evicted from the file cache first, and from that cache."""
    source = Shards([shard], "benchmark")
    where, places = source._index, range(len(source))

    def by_index(order: Sequence[int]) -> int:
        return sum(
            len(source._handles.read(shard, int(where.offset[i]), int(where.size[i]), "benchmark")) for i in order
        )

    def at_once() -> int:
        total = 0
        with shard.open("rb", buffering=0) as file:
            while data := file.read(1 << 20):
                total += len(data)
        return total

    readers: dict[str, Callable[[], int]] = {
        "one sequential read": at_once,
        "images in order": lambda: by_index(places),
        "images in random order": lambda: by_index(random.sample(places, len(places))),
    }
    print(f"\nshard of {shard.stat().st_size / 1e6:.0f} MB, {len(source)} images, bytes alone, MB/s of wall time")
    for cached in (False, True):
        best = dict.fromkeys(readers, 0.0)
        for _ in range(repeats + 1):
            for name, read in readers.items():
                if not cached:
                    evict(shard)
                start = time.perf_counter()
                best[name] = max(best[name], 1e-6 * read() / (time.perf_counter() - start))
        print("  from the file cache" if cached else "  from the disk")
        for name, speed in best.items():
            print(f"    {name:<26} {speed:8.0f}  {speed / best['one sequential read']:6.0%}")


def evict(file: Path) -> None:
    """Drop a file from the system's cache."""
    with file.open("rb") as opened:
        os.fsync(opened.fileno())
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


if __name__ == "__main__":
    main()
