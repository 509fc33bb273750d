"""Packs the images that nano learns from, and those that it is measured on, as tar files.

    python -m lab.nano.pack TINY_IMAGENET/train CIFAR10/train.tar OUT

Training sees no label. Of each class of Tiny-ImageNet 25 images are held out with their labels (20 to vote, 5 to be
classified), and of CIFAR-10 the last 5,000 training images (4,000 and 1,000). The sets' own validation and test images
are not touched.
"""

import io
import sys
import tarfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import chain
from pathlib import Path

HELD_PER_CLASS = 25
VOTERS = 0.8


def _tiny(root: Path) -> Iterator[tuple[str, bytes, int, bool]]:
    for label, folder in enumerate(sorted(path for path in root.iterdir() if path.is_dir())):
        files = sorted(folder.rglob("*.JPEG"))
        for rank, file in enumerate(files):
            held = rank >= len(files) - HELD_PER_CLASS
            voter = rank < len(files) - HELD_PER_CLASS + HELD_PER_CLASS * VOTERS
            yield _part("tiny", held, voter), file.read_bytes(), label, held


def _cifar(path: Path, held_images: int = 5_000) -> Iterator[tuple[str, bytes, int, bool]]:
    with tarfile.open(path) as source:
        read = {member.name: source.extractfile(member).read() for member in source if member.isfile()}  # type: ignore[union-attr]
    names = sorted(name for name in read if not name.endswith(".cls"))
    for rank, name in enumerate(names):
        held = rank >= len(names) - held_images
        voter = rank < len(names) - held_images * (1 - VOTERS)
        yield _part("cifar", held, voter), read[name], int(read[Path(name).stem + ".cls"]), held


def _part(data: str, held: bool, voter: bool) -> str:
    if not held:
        return f"train/{data}.tar"
    return f"held/{data}/{'train' if voter else 'test'}.tar"


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))


def main(tiny: Path, cifar: Path, out: Path) -> None:
    counts: Counter[str] = Counter()
    with ExitStack() as files:
        tars: dict[str, tarfile.TarFile] = {}
        for part, content, label, held in chain(_tiny(tiny), _cifar(cifar)):
            if part not in tars:
                (out / part).parent.mkdir(parents=True, exist_ok=True)
                tars[part] = files.enter_context(tarfile.open(out / part, "w"))
            suffix = "png" if content.startswith(b"\x89PNG") else "jpg"
            _add(tars[part], f"{counts[part]:06d}.{suffix}", content)
            if held:
                _add(tars[part], f"{counts[part]:06d}.cls", str(label).encode())
            counts[part] += 1
    for part, count in counts.items():
        print(f"{count:7,} images  {out / part}")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]))
