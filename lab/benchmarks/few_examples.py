"""Segmentation from few examples: the plain vote of before, the present choice, and the IoU that it expects.

    python -m lab.benchmarks.few_examples RUN camvid=DATA/camvid --examples 8 --tests 24 --seeds 3
    python -m lab.benchmarks.few_examples RUN scenes --examples 8
    python -m lab.benchmarks.few_examples RUN davis=DATA/davis

For CamVid, `camvid-pedestrian` and `camvid-car` have that class and background only. For DAVIS it prints the mean J of
each clip, the mean confidence, and the frames in which the object is said to be lost next to those with J < 0.1.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

import asterism
from asterism.data import open_source
from asterism.data.sources.videos import open_videos
from asterism.features.mask_tracking import Tracking, follow_objects
from asterism.images.masks import VOID, read_labels
from asterism.images.pictures import read_picture
from asterism.ops.segmentation_metrics import confusion, scores
from asterism.tools.labelled_patches import LabelledPatches, labelled_patches
from asterism.tools.patch_labellers import Labeller, Vote
from asterism.tools.segment import Segmenting, fitted, segment

_CAMVID_VOID, _ONLY = 11, {"camvid-car": 8, "camvid-pedestrian": 9}
Pair = tuple[Tensor, Tensor]  # image and class of each pixel


def camvid(root: Path, split: str, only: int | None, numbers: list[int]) -> list[Pair]:
    files = sorted((root / split).glob("*.jpg"))
    pairs = []
    for number in numbers:
        mask = torch.from_numpy(read_labels(root / f"{split}annot" / f"{files[number].stem}.png")).long()
        mask = torch.where(mask == _CAMVID_VOID, VOID, mask if only is None else (mask == only).long())
        pairs.append((read_picture(files[number]), mask))
    return pairs


def drawn(total: int, count: int, seed: int) -> list[int]:
    return torch.randperm(total, generator=torch.Generator().manual_seed(seed))[:count].tolist()


def spread(total: int, count: int) -> list[int]:
    return torch.linspace(0, total - 1, count).long().tolist()


def sets(name: str, root: Path | None, examples: int, tests: int, seed: int) -> tuple[list[Pair], list[Pair]]:
    if root is not None:
        total = {split: len(list((root / split).glob("*.jpg"))) for split in ("train", "test")}
        only = _ONLY.get(name)
        train = camvid(root, "train", only, drawn(total["train"], examples, seed))
        return train, camvid(root, "test", only, spread(total["test"], tests))
    sources = [open_source("scenes:size=64,count=2000", split) for split in ("train", "test")]
    chosen = drawn(2000, examples, seed), list(range(tests))
    pairs = [
        [(s.image, s.semantic.long()) for s in map(source.__getitem__, part)]
        for source, part in zip(sources, chosen, strict=True)
    ]
    return pairs[0], pairs[1]


def iou(
    encoder: asterism.Encoder, label: Labeller, memory: LabelledPatches, tests: list[Pair], config: Segmenting
) -> tuple[Tensor, float, float]:
    """IoU by class, the share of pixels that is right, and the mean confidence."""
    classes = memory.classes
    counts = torch.zeros(len(classes), len(classes), dtype=torch.int64)
    right = sure = pixels = 0.0
    for image, mask in tests:
        found = segment(encoder, image, label, memory, config)
        mask = torch.where(torch.isin(mask, classes), mask, VOID)
        known = mask != VOID
        places = torch.where(known, torch.searchsorted(classes, mask), VOID)
        counts += confusion(torch.searchsorted(classes, found.mask.long()), places, len(classes), VOID)
        right += float((found.mask.long() == mask)[known].sum())
        sure += float(found.confidence[known].sum()) / 255
        pixels += float(known.sum())
    return scores(counts).iou, right / pixels, sure / pixels


def row(name: str, values: list[float | None]) -> str:
    return f"{name:10s}" + " ".join("    –" if v is None or math.isnan(v) else f"{100 * v:5.1f}" for v in values)


def few_examples(encoder: asterism.Encoder, name: str, root: Path | None, options: argparse.Namespace) -> None:
    config = Segmenting.parse({"short_side": options.short_side})
    for seed in range(options.seeds):
        train, tests = sets(name, root, options.examples, options.tests, seed)
        classes = torch.unique(torch.cat([torch.unique(mask) for _, mask in train]))
        memory = labelled_patches(encoder, train, classes[classes != VOID], config)
        label, expected, _ = fitted(memory, config)
        before, accuracy, sure = iou(encoder, Vote(memory, config.k, config.temperature), memory, tests, config)
        print(f"{name}, seed {seed}, classes {memory.classes.tolist()}")
        print(
            row("before", [float(before.nanmean()), *before.tolist()]),
            f" accuracy {accuracy:.2f} confidence {sure:.2f}",
        )
        after, accuracy, sure = iou(encoder, label, memory, tests, config)
        print(
            row("after", [float(after.nanmean()), *after.tolist()]), f" accuracy {accuracy:.2f} confidence {sure:.2f}"
        )
        if expected is not None:
            chosen = f" {expected.head}, balance {expected.balance}"
            print(row("expected", [expected.mean, *expected.iou.values()]) + chosen, flush=True)


def tracked(encoder: asterism.Encoder, root: Path, short_side: int | None, below: float = 0.5) -> None:
    videos = open_videos(str(root))
    for name, clip in videos.clips.items():
        frames = [videos[number] for number in clip]
        truth = [torch.where(frame.instances == VOID, 0, frame.instances).long() for frame in frames]
        config = Tracking.parse({"first_mask": "shares", "short_side": short_side})
        found = follow_objects(encoder, iter([f.image for f in frames]), truth[0], config)
        js, confidences = [], []
        for mask, each in zip(truth[1:], found, strict=True):
            both, either = ((mask > 0) & (each.mask > 0)).sum(), ((mask > 0) | (each.mask > 0)).sum()
            js.append(float(both / either.clamp_min(1)))
            confidences.append(each.confidence[1])
        lost = [n for n, value in enumerate(confidences, 1) if value < below]
        poor = [n for n, value in enumerate(js, 1) if value < 0.1]
        correlation = float(torch.corrcoef(torch.tensor([js, confidences]))[0, 1])
        print(
            f"{name:16s} J {100 * sum(js) / len(js):5.1f}  confidence {sum(confidences) / len(js):.2f}  correlation "
            f"{correlation:5.2f}  said to be lost {ranges(lost)}  J < 0.1 {ranges(poor)}",
            flush=True,
        )


def ranges(numbers: list[int]) -> str:
    """[1, 2, 3, 7] as 1–3, 7."""

    def runs() -> Iterator[str]:
        start = None
        for place, number in enumerate(numbers):
            start = number if start is None else start
            if place + 1 == len(numbers) or numbers[place + 1] != number + 1:
                yield str(start) if start == number else f"{start}–{number}"
                start = None

    return ", ".join(runs()) or "never"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("data", nargs="+")
    parser.add_argument("--examples", type=int, default=8)
    parser.add_argument("--tests", type=int, default=24)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--short-side", type=int, help="pixels; by default in proportion to the encoder")
    options = parser.parse_args()
    encoder = asterism.load(options.model).eval()
    for data in options.data:
        name, _, root = data.partition("=")
        if name == "davis":
            tracked(encoder, Path(root), options.short_side)
        else:
            few_examples(encoder, name, Path(root) if root else None, options)


if __name__ == "__main__":
    main()
