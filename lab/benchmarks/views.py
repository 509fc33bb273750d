"""Throughput of DINO's 2+8 views on one core: ours compared with torchvision v2 on PIL images, in one run.

    python -m lab.benchmarks.views --images photos/ --count 16 --repeats 5

Both sides start from the same images and end with uint8 tensors; where decoding is included, each side decodes as in
training (Pillow, `asterism.images.decode`). The baseline has two forms: with torchvision's own GaussianBlur (9 × 9
taps) and with PIL's, as in the DINO code. Times are CPU time; repetitions are interleaved, each with new draws, and the
best of each side counts, so that other work on the machine affects both sides equally. At the end, views of small
images are made one image at a time, and together.
"""

from __future__ import annotations

import argparse
import io
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageFilter
from torch import Tensor
from torchvision.transforms import InterpolationMode, v2

from asterism.data import Scenes
from asterism.data.views import Views
from asterism.images.decode import decode
from asterism.ops.random import fold
from asterism.types import ColorJitter, ViewSpec

GLOBAL_SCALE, LOCAL_SCALE, SIGMA = (0.25, 1.0), (0.05, 0.25), (0.1, 2.0)
LOCAL_VIEWS = 8
OURS = "asterism"


def our_views(size: int = 224, local_size: int = 96, local_views: int = LOCAL_VIEWS) -> Views:
    first = ViewSpec(size=size, scale=GLOBAL_SCALE, jitter=ColorJitter(), grayscale=0.2, blur=1.0, blur_sigma=SIGMA)
    second = first.model_copy(update={"blur": 0.1, "solarize": 0.2})
    local = first.model_copy(update={"size": local_size, "scale": LOCAL_SCALE, "blur": 0.5})
    return Views([first, second, *[local] * local_views])


def cut_views(views: Views, images: Sequence[Tensor], seed: int) -> None:
    keys = [fold(seed, number) for number in range(len(images))]
    views.apply(images, views.sample([(image.shape[1], image.shape[2]) for image in images], keys))


def small_views(size: int, count: int = 64) -> dict[str, Callable[[int], None]]:
    """Views of small images, cropped one image at a time and several together."""
    views, scenes = our_views(size, size // 2, 2), Scenes(size=size, count=count)
    images = [scenes[number].image for number in range(count)]

    def alone(seed: int) -> None:
        for number, image in enumerate(images):
            cut_views(views, [image], fold(seed, number))

    return {"one image at a time": alone, OURS: lambda seed: cut_views(views, images, seed)}


class PILBlur:
    """DINO's blur, with a new radius for every image."""

    def __call__(self, image: Image.Image) -> Image.Image:
        return image.filter(ImageFilter.GaussianBlur(radius=random.uniform(*SIGMA)))


def baseline_views(blur: Callable[[Any], Any]) -> list[Callable[[Any], Any]]:
    def view(size: int, scale: tuple[float, float], blur_share: float, solarize_share: float) -> v2.Compose:
        return v2.Compose(
            [
                v2.RandomResizedCrop(size, scale=scale, interpolation=InterpolationMode.BICUBIC, antialias=True),
                v2.RandomHorizontalFlip(0.5),
                v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.2, 0.1)], p=0.8),
                v2.RandomGrayscale(0.2),
                v2.RandomApply([blur], p=blur_share),
                v2.RandomSolarize(128, p=solarize_share),
                v2.ToImage(),
            ]
        )

    first, second = view(224, GLOBAL_SCALE, 1.0, 0.0), view(224, GLOBAL_SCALE, 0.1, 0.2)
    return [first, second, *[view(96, LOCAL_SCALE, 0.5, 0.0)] * LOCAL_VIEWS]


def decode_with_pillow(encoded: bytes) -> Image.Image:
    with Image.open(io.BytesIO(encoded)) as image:
        return image.convert("RGB")


def encoded_images(folder: Path | None, count: int) -> list[bytes]:
    """JPEG files of a folder, or synthetic photographs: smooth colour fields with fine texture, 500 × 375."""
    if folder is not None:
        paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in {".jpg", ".jpeg"})[:count]
        if not paths:
            raise SystemExit(f"no .jpg files below {folder}")
        return [path.read_bytes() for path in paths]
    generator = np.random.default_rng(0)
    files = []
    for _ in range(count):
        coarse = generator.integers(0, 256, (6, 8, 3), dtype=np.uint8)
        fine = generator.normal(0, 12, (375, 500, 3))
        field = np.asarray(Image.fromarray(coarse).resize((500, 375), Image.Resampling.BICUBIC), dtype=np.float32)
        buffer = io.BytesIO()
        Image.fromarray((field + fine).clip(0, 255).astype(np.uint8)).save(buffer, "jpeg", quality=90)
        files.append(buffer.getvalue())
    return files


def best_times(contestants: dict[str, Callable[[int], None]], repeats: int) -> dict[str, float]:
    """Best seconds of each form over interleaved repetitions with different seeds, after a warm-up."""
    best = dict.fromkeys(contestants, float("inf"))
    for repeat in range(repeats + 1):
        for name, run in contestants.items():
            torch.manual_seed(repeat)
            random.seed(repeat)
            start = time.process_time()
            run(repeat)
            if repeat:
                best[name] = min(best[name], time.process_time() - start)
    return best


def report(title: str, times: dict[str, float], images: int) -> None:
    print(f"\n{title}")
    for name, seconds in times.items():
        print(f"  {name:<28} {1e3 * seconds / images:7.2f} ms/image  {images / seconds:7.1f} images/s")
    fastest = min(seconds for name, seconds in times.items() if name != OURS)
    print(f"  {OURS} is {fastest / times[OURS]:.2f} times as fast as the faster baseline")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, help="folder of JPEG files (default: synthetic images, 500 × 375)")
    parser.add_argument("--count", type=int, default=16, help="number of images")
    parser.add_argument("--repeats", type=int, default=5, help="timed repetitions of each side")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)

    files = encoded_images(options.images, options.count)
    pictures = {file: decode_with_pillow(file) for file in files}
    tensors = {file: decode(file, "benchmark") for file in files}
    views = our_views()
    baselines = {
        "torchvision v2, v2 blur": baseline_views(v2.GaussianBlur(9, SIGMA)),
        "torchvision v2, PIL blur": baseline_views(PILBlur()),
    }

    def ours(decoder: Callable[[bytes], Tensor]) -> Callable[[int], None]:
        def run(seed: int) -> None:
            cut_views(views, list(map(decoder, files)), seed)

        return run

    def theirs(
        transforms: list[Callable[[Any], Any]], decoder: Callable[[bytes], Image.Image]
    ) -> Callable[[int], None]:
        def run(seed: int) -> None:
            for image in map(decoder, files):
                for transform in transforms:
                    transform(image)

        return run

    excluded = {name: theirs(transforms, pictures.__getitem__) for name, transforms in baselines.items()}
    included = {name: theirs(transforms, decode_with_pillow) for name, transforms in baselines.items()}
    excluded[OURS] = ours(tensors.__getitem__)
    included[OURS] = ours(lambda file: decode(file, "benchmark"))

    width, height = np.mean([picture.size for picture in pictures.values()], axis=0)
    print(f"{len(files)} images, mean size {width:.0f} × {height:.0f}; torch {torch.__version__}, one thread")
    report("decoding excluded", best_times(excluded, options.repeats), len(files))
    report("decoding included", best_times(included, options.repeats), len(files))
    for size in (32, 64):
        times = best_times(small_views(size), options.repeats)
        report(f"2+2 views of images of {size} × {size} pixels, 64 of them together", times, 64)


if __name__ == "__main__":
    main()
