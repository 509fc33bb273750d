"""Searches of the evaluations next to their direct forms: dense nearest neighbours, k-NN, and masks in videos.

    python -m lab.benchmarks.evaluations [--repeats 3]
    python -m lab.benchmarks.evaluations --model runs/mae --data camvid/ [--size 320] [--rows 262144] [--repeats 3]

Features are random and of 384 channels, or those of the patches of images of `size` pixels: queries from the test
images, the bank from the training images. All forms alternate in one process with one thread; the best CPU time counts,
and their similarities must be equal. `product` is the matrix product of all rows, alone. From the time per query and
row, the searches of whole data sets are extrapolated, for one core.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import asterism
from asterism.data import evaluation_batches, open_source
from asterism.ops.neighbours import nearest, nearest_in_parts
from asterism.ops.propagation import carry_mask

_CHANNELS = 384
_QUERIES = 1024  # of the measured search
_CHUNK = 16384
# patches of the test images, patches of the training images; images of 480 × 360 and of 512 × 683, patches of 16
CAMVID, ADE20K = (233 * 660, 367 * 660), (2000 * 1376, 20_210 * 1376)
IMAGENET = (50_000, 1_281_167)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a run or anything else that asterism.load takes")
    parser.add_argument("--data", help="images with a train and a test split")
    parser.add_argument("--size", type=int, default=320, help="pixels of a side of the images")
    parser.add_argument("--rows", type=int, default=65536, help="of the bank")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    if bool(options.model) != bool(options.data):
        parser.error("--model and --data belong together")
    torch.set_num_threads(1)
    draw = torch.Generator().manual_seed(0)
    if options.model:
        queries = patches(options, "test", _QUERIES)
        bank = patches(options, "train", options.rows)
    else:
        queries, bank = (
            F.normalize(torch.randn(count, _CHANNELS, generator=draw), dim=1) for count in (_QUERIES, options.rows)
        )
    product = {"product": lambda: [queries @ rows.T for rows in torch.split(bank, _CHUNK)][-1]}
    print(f"{len(queries):,} queries, {len(bank):,} rows, {bank.shape[1]} channels")

    parts = shares(len(bank), draw)
    times = race(
        "dense nearest neighbours: 50 rows in all 16 parts",
        {
            "asterism": lambda: nearest_in_parts(queries, bank, parts, 50),
            "direct": lambda: direct_parts(queries, bank, parts, 50),
            **product,
        },
        options.repeats,
    )
    extrapolate(times, queries, bank, {"CamVid": CAMVID, "ADE20K": ADE20K})
    everything = [[range(len(bank))]]
    for k in (20, 200):
        times = race(
            f"k-NN: {k} rows",
            {
                "asterism": lambda k=k: [nearest(queries, bank, k)],  # type: ignore[misc]
                "direct": lambda k=k: direct_parts(queries, bank, everything, k),  # type: ignore[misc]
                **product,
            },
            options.repeats,
        )
        extrapolate(times, queries, bank, {"ImageNet": IMAGENET})
    video(draw, options.repeats)


@torch.no_grad()
def patches(options: argparse.Namespace, split: str, rows: int) -> Tensor:
    """Unit features of patches, evenly from the images."""
    encoder = asterism.load(options.model)
    source = open_source(options.data, split)
    per_image = -(-rows // len(source))
    found = []
    for batch in evaluation_batches(source, options.size, batch_size=8):
        tokens = encoder.encode(batch.images).patches.float()
        assert per_image <= tokens.shape[1], f"{len(source)} images have {len(source) * tokens.shape[1]:,} patches"
        found.append(tokens[:, torch.linspace(0, tokens.shape[1] - 1, per_image).long()].flatten(0, 1))
    return F.normalize(torch.cat(found)[:rows], dim=1)


def shares(rows: int, draw: torch.Generator) -> list[list[range]]:
    """All rows, and five draws each of 1/8, 1/64 and 1/128 of 128 images."""
    per_image = rows // 128
    parts = [[range(rows)]]
    for count in (16, 2, 1):
        for _ in range(5):
            images = sorted(torch.randperm(128, generator=draw)[:count].tolist())
            parts.append([range(per_image * image, per_image * (image + 1)) for image in images])
    return parts


def direct_parts(
    queries: Tensor, bank: Tensor, parts: Sequence[Sequence[range]], k: int
) -> list[tuple[Tensor, Tensor]]:
    """Similarities chunk by chunk, and in every part the k largest of those and the best so far."""
    best = [(queries.new_empty(len(queries), 0), torch.empty(len(queries), 0, dtype=torch.int64)) for _ in parts]
    for start in range(0, len(bank), _CHUNK):
        similarity = queries @ bank[start : start + _CHUNK].T
        for part, runs in enumerate(parts):
            own = [row for run in runs for row in run if start <= row < start + _CHUNK]
            if own:
                rows = torch.tensor(own)
                candidates = similarity if len(own) == _CHUNK else similarity[:, rows - start]
                values, known = best[part]
                both = torch.cat([values, candidates], 1)
                values, place = both.topk(min(k, both.shape[1]))
                best[part] = values, torch.cat([known, rows.expand(len(queries), -1)], 1).gather(1, place)
    return best


def video(draw: torch.Generator, repeats: int) -> None:
    """A frame of 864 × 480 pixels, patches of 16, four objects, eight frames of context: the protocol of DAVIS."""
    height, width = 30, 54
    keys = F.normalize(torch.randn(8, height * width, _CHANNELS, generator=draw), dim=-1)
    queries = F.normalize(torch.randn(height * width, _CHANNELS, generator=draw), dim=-1)
    masks = torch.rand(8, 4, height, width, generator=draw)
    race(
        "masks in videos: one frame of 864 × 480 pixels",
        {
            "asterism": lambda: [(carry_mask(queries, keys, masks, topk=5, radius=12, temperature=0.1),)],
            "direct": lambda: [(direct_mask(queries, keys, masks),)],
            "product": lambda: queries @ keys.flatten(0, 1).T,
        },
        repeats,
    )


def direct_mask(queries: Tensor, keys: Tensor, masks: Tensor) -> Tensor:
    """Every patch with every other, distant and dissimilar ones masked out, and a softmax over all."""
    _, classes, height, width = masks.shape
    place = torch.cartesian_prod(torch.arange(height), torch.arange(width))
    near = ((place[:, None] - place).abs() <= 12).all(-1)
    cosine = torch.einsum("qd,tnd->qtn", queries, keys).masked_fill(~near[:, None], -torch.inf).flatten(1)
    least = cosine.topk(5).values[:, -1:]
    weights = (cosine.masked_fill(cosine < least, -torch.inf) / 0.1).softmax(dim=1)
    return (weights @ masks.permute(0, 2, 3, 1).reshape(-1, classes)).T.reshape(classes, height, width)


def race(title: str, forms: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    best = dict.fromkeys(forms, float("inf"))
    results: dict[str, Any] = {}
    for _ in range(repeats):
        for name, run in forms.items():
            start = time.process_time()
            results[name] = run()
            best[name] = min(best[name], time.process_time() - start)
    for name in results.keys() - {"asterism", "product"}:
        for ours, other in zip(results["asterism"], results[name], strict=True):
            torch.testing.assert_close(ours[0], other[0])
    print(f"\n{title}")
    for name, seconds in best.items():
        print(f"  {name:<16} {1e3 * seconds:7.0f} ms  {seconds / best['asterism']:5.2f}")
    return best


def extrapolate(times: dict[str, float], queries: Tensor, bank: Tensor, sets: dict[str, tuple[int, int]]) -> None:
    for name, (asked, rows) in sets.items():
        hours = times["asterism"] / (len(queries) * len(bank)) * asked * rows / 3600
        print(f"  {name}, {asked:,} × {rows:,}: {hours:.2g} core hours", flush=True)


if __name__ == "__main__":
    main()
