"""CrIBo: joint clustering and bank search compared with their direct forms, and the parts of a step.

    python -m lab.benchmarks.cribo_clustering              # all three
    python -m lab.benchmarks.cribo_clustering profile --images 8

clusters: all rounds, 16 images of 2 × 196 tokens, K = 32 and 64. The direct form builds the tensor of distances from
every token to every member of every cluster and scales the whole transport plan in every iteration; labels must agree.
search: 1024 objects among 200 000 stored ones. The direct form is one matrix product with precomputed single-precision
unit rows, and argmax. Each form runs in its own process; memory is the increase of its peak resident memory.
profile: one step, divided as in table 9 of the paper, whose shares are printed next to ours.
The forms run alternately, and the best time of each counts. Times are CPU time, so that other work on the machine does
not count; with several threads they are added up.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from asterism.methods import cribo
from asterism.methods.cribo import Cribo, CriboConfig
from asterism.nn.backbone import BackboneConfig
from asterism.nn.object_bank import BankConfig, ObjectBank, StoredObjects
from asterism.ops.clustering import ClusteringConfig, cluster, draw_seeds
from asterism.ops.geometry import geometry_from_rows, patch_centers
from asterism.ops.neighbours import most_similar_row, reciprocal_lengths
from asterism.ops.random import fold_each, uniform
from asterism.types import Batch, Progress, View

IMAGES, GRID, WIDTH = 16, 14, 384
BANK_ROWS, QUERIES = 200_000, 1024
PAPER = {  # milliseconds of a step of ViT-B/16 with K = 12 (table 9)
    "forward": 453.4,
    "clustering": 82.2,
    "retrieval": 47.5,
    "object projections": 11.2,
    "weights update": 493.1,
}


# ----------------------------------------------------------------------------------------------------------- clusters


def two_views(images: int) -> tuple[Tensor, Tensor]:
    """Tokens that vary smoothly over the image, with noise, and the positions of their patches in random crops."""
    g = torch.Generator().manual_seed(0)
    draws = uniform(fold_each(torch.arange(images), 1), 8).view(2, images, 4)
    sides = 200 + 300 * draws[..., :2]
    corners = (500 - sides) * draws[..., 2:]
    whole = torch.full((2, images, 2), 500.0)
    flips = torch.tensor([0.0, 1.0])[:, None, None].expand(2, images, 1)
    crops = torch.cat([corners, sides, whole, flips], dim=2)
    positions = torch.cat([patch_centers(geometry_from_rows(crop), (GRID, GRID)) for crop in crops], dim=1)
    waves = torch.randn(images, 2, WIDTH, generator=g) / 60
    tokens = torch.sin(positions @ waves) + 0.5 * torch.randn(images, 2 * GRID**2, WIDTH, generator=g)
    return tokens, positions


def direct_clusters(tokens: Tensor, positions: Tensor, seeds: Tensor, config: ClusteringConfig) -> Tensor:
    """The same rounds, written directly from the equations."""
    (b, n, _), k = tokens.shape, seeds.shape[1]
    z = F.normalize(tokens, dim=-1)
    centroids = z.gather(1, seeds[..., None].expand(-1, -1, z.shape[-1]))
    members = F.one_hot(seeds, n).mT.float()
    columns = torch.full((b, 1, k), 1 / k)
    for _ in range(config.rounds):
        distances = torch.linalg.vector_norm(positions[:, :, None] - positions[:, None], dim=-1)
        to_members = distances[..., None] * members[:, None]
        to_members = torch.where(to_members == 0, torch.inf, to_members).amin(dim=2)
        alone = to_members.isinf()
        near = to_members.masked_fill(alone, 0)
        near = torch.where(alone, near.mean(dim=(1, 2), keepdim=True), near)
        cost = config.position_weight * near / near.amax(dim=(1, 2), keepdim=True) - z @ centroids.mT
        low, high = cost.amin(dim=(1, 2), keepdim=True), cost.amax(dim=(1, 2), keepdim=True)
        plan = torch.exp(-config.sharpness * (cost - low) / (high - low))
        plan = plan / plan.sum(dim=(1, 2), keepdim=True)
        for _ in range(config.sinkhorn_iterations):
            plan = plan / plan.sum(dim=2, keepdim=True) / n
            plan = plan / plan.sum(dim=1, keepdim=True) * columns
        labels = plan.argmax(dim=2)
        members = F.one_hot(labels, k).float()
        centroids = F.normalize(members.mT @ z, dim=-1)
        columns = members.sum(dim=1, keepdim=True) + config.marginal_offset
        columns = columns / columns.sum(dim=2, keepdim=True)
    return labels


def compare_clusters(repeats: int) -> None:
    tokens, positions = two_views(IMAGES)
    for clusters in (32, 64):
        config = ClusteringConfig(clusters=clusters)
        seeds = draw_seeds(fold_each(torch.arange(IMAGES), 2), tokens.shape[1], clusters)
        forms: dict[str, Callable[..., Tensor]] = {"ours": cluster, "direct": direct_clusters}
        seconds: dict[str, list[float]] = defaultdict(list)
        labels = {}
        for _ in range(repeats):
            for name, form in forms.items():
                start = time.process_time()
                labels[name] = form(tokens, positions, seeds, config)
                seconds[name].append(time.process_time() - start)
        best = {name: min(times) for name, times in seconds.items()}
        different = int((labels["ours"] != labels["direct"]).sum())
        print(
            f"clusters, K = {clusters}: ours {best['ours']:.3f} s, direct {best['direct']:.3f} s, "
            f"{best['direct'] / best['ours']:.1f} × faster; {different} of {labels['ours'].numel()} labels differ"
        )


# ------------------------------------------------------------------------------------------------------------- search


@dataclass(frozen=True)
class Measurement:
    """The measurement of one process."""

    seconds: float
    mebibytes: float
    found: list[int]


def measure_search(form: str, threads: int) -> Measurement:
    torch.set_num_threads(threads)
    g = torch.Generator().manual_seed(0)
    # In small chunks, so that making the inputs does not determine the peak.
    stored, lengths = torch.empty(BANK_ROWS, WIDTH, dtype=torch.float16), torch.empty(BANK_ROWS)
    unit = torch.empty(BANK_ROWS if form == "direct" else 0, WIDTH)
    for part in torch.split(torch.arange(BANK_ROWS), 1000):
        stored[part] = torch.randn(len(part), WIDTH, generator=g).half()
        lengths[part] = reciprocal_lengths(stored[part])
        if form == "direct":
            unit[part] = stored[part] * lengths[part, None]
    queries = torch.randn(QUERIES, WIDTH, generator=g)
    image = torch.arange(BANK_ROWS) // 32
    among, own = torch.ones(BANK_ROWS, dtype=torch.bool), torch.full((QUERIES,), -1)

    def ours() -> Tensor:
        return most_similar_row(
            queries, stored, among=among, reciprocal_length=lengths, query_group=own, row_group=image
        )

    def direct() -> Tensor:
        return (F.normalize(queries, dim=1) @ unit.T).argmax(dim=1)

    most_similar_row(queries[:2], stored[:100])  # loads the libraries, so that their memory does not count
    search = {"ours": ours, "direct": direct}[form]
    before, seconds = _peak(), []
    for _ in range(2):
        start = time.process_time()
        found = search()
        seconds.append(time.process_time() - start)
    return Measurement(min(seconds), (_peak() - before) / 2**20, found.tolist())


def _peak() -> int:
    """Peak resident memory of this process so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def compare_search(threads: int, repeats: int) -> None:
    context = multiprocessing.get_context("spawn")  # a forked child would inherit its parent's peak
    results: dict[str, list[Measurement]] = defaultdict(list)
    for _ in range(repeats):
        for form in ("ours", "direct"):
            with context.Pool(1) as pool:
                results[form].append(pool.apply(measure_search, (form, threads)))
    seconds = {form: min(m.seconds for m in found) for form, found in results.items()}
    memory = {form: statistics.median(m.mebibytes for m in found) for form, found in results.items()}
    for form in results:
        print(f"search, {form:>6}: {seconds[form]:6.2f} s, {memory[form]:6.0f} MiB besides the rows")
    ours, direct = (results[form][0].found for form in ("ours", "direct"))
    different = sum(a != b for a, b in zip(ours, direct, strict=True))
    print(
        f"search: {seconds['direct'] / seconds['ours']:.2f} × faster, {memory['direct'] / memory['ours']:.1f} × less "
        f"memory; {different} of {QUERIES} neighbours differ"
    )


# ------------------------------------------------------------------------------------------------------------ profile


class Clock:
    """Times the calls of some methods of an object, in seconds."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    def watch(self, owner: Any, name: str, part: str) -> None:
        inner = getattr(owner, name)

        def timed(*arguments: Any) -> Any:
            start = time.process_time()
            try:
                return inner(*arguments)
            finally:
                self.seconds[part] += time.process_time() - start

        object.__setattr__(owner, name, timed)


def profile(backbone: str, images: int, clusters: int, bank_images: int, repeats: int) -> None:
    config = CriboConfig(objects=ClusteringConfig(clusters=clusters), bank=BankConfig(images=bank_images))
    method = Cribo(config, BackboneConfig(name=backbone))
    assert method.bank is not None
    _fill(method.bank)
    clock = Clock()
    for owner, name, part in (
        (method, "loss", "loss"),
        (method, "find_objects", "clustering"),
        (method, "collect_objects", "clustering"),
        (method, "project", "objects"),
        (method, "project_neighbours", "objects"),
        (cribo, "object_loss", "objects"),
        (cribo, "neighbour_loss", "objects"),
        (method, "find_neighbours", "search"),
        (method.bank, "store", "store"),
    ):
        clock.watch(owner, name, part)
    optimizer = torch.optim.AdamW([p for p in method.parameters() if p.requires_grad], lr=1e-4)
    batch, progress = _noise(method, images), Progress(step=5, steps=10, steps_per_epoch=1)
    shares: list[dict[str, float]] = []
    for _ in range(repeats + 1):
        clock.seconds.clear()
        start = time.process_time()
        torch.autograd.backward(method.loss(batch, progress).total)
        optimizer.step()
        optimizer.zero_grad()
        method.after_update(progress)
        whole, spent = time.process_time() - start, clock.seconds
        shares.append(
            {
                "forward": spent["loss"] - spent["clustering"] - spent["objects"] - spent["search"],
                "clustering": spent["clustering"],
                "retrieval": spent["search"] + spent["store"],
                "object projections": spent["objects"],
                "weights update": whole - spent["loss"] - spent["store"],
            }
        )
    print(
        f"a step of {images} images, {backbone}, K = {clusters}, S = {bank_images}, {torch.get_num_threads()} threads"
    )
    median = {part: statistics.median(share[part] for share in shares[1:]) for part in PAPER}
    whole, paper = sum(median.values()), sum(PAPER.values())
    for part, seconds in median.items():
        print(f"{part:>20}: {seconds:7.2f} s {seconds / whole:7.1%}   (paper {PAPER[part] / paper:6.1%})")


def _fill(bank: ObjectBank) -> None:
    g = torch.Generator().manual_seed(0)
    _, images, slots, dim = bank.rows.shape
    for first in range(0, images, 1000):
        count = min(1000, images - first)
        rows, valid = torch.randn(count, slots, 2, dim, generator=g), torch.ones(count, slots, dtype=torch.bool)
        image = 10**9 + first + torch.arange(count)
        bank.push(StoredObjects(rows, valid, valid.long(), image, keys=image))


def _noise(method: Cribo, images: int) -> Batch:
    g = torch.Generator().manual_seed(0)
    rows = torch.tensor([[0.0, 0, 180, 180, 224, 224, 0], [44, 44, 180, 180, 224, 224, 1]])
    views = tuple(
        View(torch.randn(images, 3, spec.size, spec.size, generator=g), geometry_from_rows(row.expand(images, -1)))
        for spec, row in zip(method.views, rows, strict=True)
    )
    return Batch(views, torch.arange(images), torch.arange(images))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["clusters", "search", "profile"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--backbone", default="vit_small_patch16_224", help="of the profile")
    parser.add_argument("--images", type=int, default=4, help="of the profile")
    parser.add_argument("--clusters", type=int, default=12, help="of the profile")
    parser.add_argument("--bank", type=int, default=25_000, help="images in the bank of the profile")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if "search" in options.parts:  # first: the peak of a new process starts at the size of its parent
        compare_search(options.threads, options.repeats)
    if "clusters" in options.parts:
        compare_clusters(options.repeats)
    if "profile" in options.parts:
        profile(options.backbone, options.images, options.clusters, options.bank, options.repeats)


if __name__ == "__main__":
    main()
