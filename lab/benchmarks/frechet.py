"""The Fréchet distance of two sets of features: eigenvectors of one covariance, as before, against Cholesky's factor.

python -m lab.benchmarks.frechet [--dim 512] [--rounds 3]
"""

from __future__ import annotations

import argparse
import time

import torch

from asterism.ops.frechet import Moments, frechet_distance


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    a, b = Moments(), Moments()
    mixed = torch.randn(options.dim, options.dim) / options.dim**0.5
    a.add(torch.randn(2 * options.dim, options.dim) @ mixed)
    b.add(torch.randn(2 * options.dim, options.dim) + 0.1)
    sides = {"eigenvectors": by_eigenvectors, "asterism": frechet_distance}
    best, values = dict.fromkeys(sides, float("inf")), {}
    for _ in range(options.rounds):
        for name, distance in sides.items():
            start = time.process_time()
            values[name] = distance(a, b)
            best[name] = min(best[name], time.process_time() - start)
    for name, seconds in best.items():
        ratio = seconds / best["asterism"]
        print(f"{name:14} {1e3 * seconds:9.1f} ms CPU, ours is {ratio:.2f} × as fast, value {values[name]:.10g}")


def by_eigenvectors(a: Moments, b: Moments) -> float:
    values, vectors = torch.linalg.eigh(a.covariance)
    root = (vectors * values.clamp(min=0).sqrt()) @ vectors.mT
    cross = torch.linalg.eigvalsh(root @ b.covariance @ root).clamp(min=0).sqrt().sum()
    spread = a.covariance.trace() + b.covariance.trace() - 2 * cross
    return float((a.mean - b.mean).square().sum() + spread)


if __name__ == "__main__":
    main()
