"""Exact and approximate nearest neighbours of unit vectors: build time, file, time per query and recall.

    python -m lab.benchmarks.index --vectors 1000000 --dim 64

Vectors are drawn around random centres, so that they have clusters as features of images do; uniform noise has no
neighbours worth finding. Recall is the share of the true ten nearest that are found. Times are those of the processor,
so that other programs on the machine do not count; only opening is measured by the clock.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from asterism.extras.explorer.approximate import ApproximateSearch, ExactSearch, Search, build_approximate

QUERIES, K = 200, 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vectors", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=64)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    drawn = np.random.default_rng(0)
    vectors = clustered(drawn, chosen.vectors, chosen.dim)
    queries = clustered(drawn, QUERIES, chosen.dim)
    exact = ExactSearch(vectors)
    start = time.process_time()
    _, truth = exact.nearest(queries, K)
    print(f"{len(vectors):,} vectors of {chosen.dim} channels, {QUERIES} queries, one thread")
    print(f"exact  all queries at once: {1e3 * (time.process_time() - start) / QUERIES:.1f} ms per query")
    print(f"exact  {one_by_one(exact, queries[:20]):.1f} ms per single query")
    with tempfile.TemporaryDirectory() as folder:
        measure(vectors, queries, truth, Path(folder) / "ivf.faiss")


def clustered(drawn: np.random.Generator, count: int, dim: int) -> torch.Tensor:
    centres = np.random.default_rng(1).standard_normal((2000, dim), dtype=np.float32)
    values = centres[drawn.integers(0, len(centres), count)]
    values += 0.7 * drawn.standard_normal((count, dim), dtype=np.float32)
    values /= np.linalg.norm(values, axis=1, keepdims=True)
    return torch.from_numpy(values)


def one_by_one(search: Search, queries: torch.Tensor) -> float:
    start = time.process_time()
    for query in queries:
        search.nearest(query[None], K)
    return 1e3 * (time.process_time() - start) / len(queries)


def measure(vectors: torch.Tensor, queries: torch.Tensor, truth: torch.Tensor, path: Path) -> None:
    start = time.process_time()
    build_approximate(vectors, path)
    built = time.process_time() - start
    start = time.perf_counter()
    search = ApproximateSearch(path, vectors.shape[1], len(vectors))
    opened = time.perf_counter() - start
    _, rows = search.nearest(queries, K)
    hits = [len(set(found) & set(wanted)) for found, wanted in zip(rows.tolist(), truth.tolist(), strict=True)]
    print(
        f"ivf    built in {built:.0f} s, {path.stat().st_size / 1e6:.0f} MB, opened in {1e3 * opened:.0f} ms, "
        f"{one_by_one(search, queries):.2f} ms per single query, recall@{K} {sum(hits) / (K * len(hits)):.3f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
