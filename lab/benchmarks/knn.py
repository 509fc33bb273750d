"""Weighted k-NN: ours compared with a one-hot vote and with scikit-learn, on the same features in one run.

    python -m lab.benchmarks.knn [--train 50000] [--test 2000] [--dim 384] [--classes 1000] [--threads 2]
    python -m lab.benchmarks.knn --memory --train 320000 --test 12500 [--dim 384] [--half]

Times are the best of three repetitions; a ratio above 1 means that ours is faster. With --memory only ours runs, once,
in its own process, for a quarter of the queries and for all of them: memory besides the features must not grow with
either side, except for the k neighbours of each query. The time is extrapolated to ImageNet (1.28 M × 50 k) by the
product of both sides.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor
from torch.nn import functional as F

from asterism.ops.knn import knn_accuracy, votes
from asterism.ops.neighbours import nearest
from asterism.ops.random import generator

TEMPERATURE = 0.07
K = (10, 20, 100, 200)


def main() -> None:
    options = read_options()
    if options.memory:
        measure_memory(options)
        return
    torch.set_num_threads(options.threads)
    train, train_labels, test = clustered_features(options.train, options.test, options.dim, options.classes)

    similarity, index = nearest(test, train, max(K))
    neighbours = train_labels[index]
    by_scatter, ours = best_of_three(lambda: votes(similarity, neighbours, options.classes, TEMPERATURE))
    by_one_hot, theirs = best_of_three(lambda: one_hot_votes(similarity, neighbours, options.classes))
    torch.testing.assert_close(ours, theirs)
    print(
        f"{options.train} × {options.test} rows of {options.dim}, {options.classes} classes, {options.threads} threads"
    )
    print(f"vote (k = {max(K)}), {len(test)} queries")
    print(f"  scatter             {1e3 * by_scatter:9.2f} ms")
    print(f"  one-hot             {1e3 * by_one_hot:9.2f} ms  ratio {by_one_hot / by_scatter:6.1f}")

    whole, predictions = best_of_three(lambda: our_predictions(train, train_labels, test, options.classes))
    print(f"whole prediction, k = {', '.join(map(str, K))}")
    print(f"  asterism            {1e3 * whole:9.1f} ms")
    peers, peer_predictions = best_of_three(lambda: sklearn_predictions(train, train_labels, test))
    agree = np.mean([(predictions[k].numpy() == peer_predictions[k]).mean() for k in K])
    print(f"  scikit-learn brute  {1e3 * peers:9.1f} ms  ratio {peers / whole:6.1f}  (same prediction for {agree:.2%})")


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=int, default=50_000)
    parser.add_argument("--test", type=int, default=2_000)
    parser.add_argument("--dim", type=int, default=384)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--memory", action="store_true", help="measure only our memory and time")
    parser.add_argument("--half", action="store_true", help="features in half precision, with --memory")
    return parser.parse_args()


def measure_memory(options: argparse.Namespace) -> None:
    """Peak memory of the search besides the features, and its time."""
    context = multiprocessing.get_context("spawn")
    for test in (options.test // 4, options.test):
        with context.Pool(1) as pool:
            features, beyond, seconds = pool.apply(_search, (options, test))
        imagenet = seconds * (1_281_167 * 50_000) / (options.train * test) / 3600
        print(
            f"{options.train:,} × {test:,} rows of {options.dim}: features {features / 1e6:,.0f} MB, "
            f"besides them {beyond / 1e6:,.0f} MB, of which neighbours {12 * max(K) * test / 1e6:,.0f} MB; "
            f"{seconds:,.1f} s, for 1.28 M × 50 k {imagenet:,.1f} h"
        )


def _search(options: argparse.Namespace, test: int) -> tuple[int, int, float]:
    """Bytes of the features, peak bytes besides them, and seconds."""
    torch.set_num_threads(options.threads)
    dtype = torch.float16 if options.half else torch.float32
    bank, queries = (torch.empty(rows, options.dim, dtype=dtype) for rows in (options.train, test))
    for rows in (bank, queries):
        for part in rows.split(16384):  # in chunks, so that making them needs no extra memory
            part.copy_(torch.randn(part.shape, generator=generator(len(rows))))
    labels, asked = (torch.arange(len(rows)) % options.classes for rows in (bank, queries))
    knn_accuracy(bank[:1000], labels[:1000], queries[:10], asked[:10], K, TEMPERATURE, options.classes)  # warm
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    knn_accuracy(bank, labels, queries, asked, K, TEMPERATURE, options.classes)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return bank.nbytes + queries.nbytes, 1024 * (peak - before), seconds


def clustered_features(train: int, test: int, dim: int, classes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Unit rows around one centre per class, like those of a trained encoder."""
    source = generator(0)
    centres = torch.randn(classes, dim, generator=source)
    labels = torch.randint(0, classes, (train + test,), generator=source)
    features = F.normalize(centres[labels] + 2 * torch.randn(train + test, dim, generator=source), dim=1)
    return features[:train], labels[:train], features[train:]


def one_hot_votes(similarity: Tensor, labels: Tensor, classes: int) -> Tensor:
    """The vote as it is often written: a [queries, k, classes] tensor, weighted and summed; 100 queries at a time."""
    ballots = []
    for s, y in zip(similarity.split(100), labels.split(100), strict=True):
        one_hot = torch.zeros(y.numel(), classes).scatter_(1, y.reshape(-1, 1), 1.0).view(*y.shape, classes)
        ballots.append((one_hot * torch.exp(s / TEMPERATURE)[:, :, None]).sum(1))
    return torch.cat(ballots)


def our_predictions(train: Tensor, labels: Tensor, test: Tensor, classes: int) -> dict[int, Tensor]:
    similarity, index = nearest(test, train, max(K))
    neighbours = labels[index]
    return {k: votes(similarity[:, :k], neighbours[:, :k], classes, TEMPERATURE).argmax(1) for k in K}


def sklearn_predictions(train: Tensor, labels: Tensor, test: Tensor) -> dict[int, np.ndarray]:
    def weights(distance: np.ndarray) -> np.ndarray:
        return np.exp((1 - distance) / TEMPERATURE)  # cosine distance is 1 - similarity

    model = KNeighborsClassifier(algorithm="brute", metric="cosine", weights=weights).fit(train.numpy(), labels.numpy())
    return {k: model.set_params(n_neighbors=k).predict(test.numpy()) for k in K}


def best_of_three(work: Callable[[], Any]) -> tuple[float, Any]:
    times = []
    for _ in range(3):
        start = time.perf_counter()
        result = work()
        times.append(time.perf_counter() - start)
    return min(times), result


if __name__ == "__main__":
    main()
