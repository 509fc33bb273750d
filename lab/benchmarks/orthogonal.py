"""The polynomials of `asterism/ops/orthogonal.py`, derived anew, and what they do compared with the published ones.

    python -m lab.benchmarks.orthogonal --rounds 3 --smallest 0.01

Each is the odd polynomial of degree 5 whose largest distance from 1 is smallest on an interval: first on `--smallest`
to 1, then on the interval to which the rounds before it take that one. The upper ends have `--spare` added, because
rounding may lead beyond them. On a grid of values this is a linear programme.
"""

from __future__ import annotations

import argparse
import time
from unittest import mock

import numpy as np
import torch
from jaxtyping import Float
from scipy.optimize import linprog
from torch import Tensor

from asterism.ops import orthogonal

JORDAN = ((3.4445, -4.7750, 2.0315),) * 5  # Jordan et al., 2024
VALUES = np.array([1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.2, 0.5, 0.8, 1.0])

Polynomials = tuple[tuple[float, float, float], ...]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--smallest", type=float, default=0.01, help="singular value that is still taken close to 1")
    parser.add_argument("--spare", type=float, default=0.01)
    arguments = parser.parse_args()
    found, low, high = derived(arguments.rounds, arguments.smallest, arguments.spare)
    print(f"{found}: {arguments.smallest} to 1 become {low:.2f} to {high:.2f}")
    print("values     ", *(f"{value:6.3f}" for value in VALUES))
    print("these      ", *(f"{value:6.3f}" for value in applied(found, VALUES)))
    print("Jordan, 5 ×", *(f"{value:6.3f}" for value in applied(JORDAN, VALUES)))
    torch.set_num_threads(1)
    for shape in ((12, 96, 96), (6, 96, 384), (1, 256, 256)):
        matrices = torch.randn(shape)
        ours, theirs = best_ms(matrices, orthogonal.POLYNOMIALS), best_ms(matrices, JORDAN)
        print(f"{shape}: {ours:.2f} ms, with Jordan's five rounds {theirs:.2f} ms ({theirs / ours:.2f} ×)")


def derived(rounds: int, smallest: float, spare: float) -> tuple[Polynomials, float, float]:
    """The polynomials, and the interval to which they take the values from `smallest` to 1."""
    low, high, found = smallest, 1.0, []
    for _ in range(rounds):
        *coefficients, distance = closest_to_one(low, (1 + spare) * high)
        a, b, c = (round(value, 4) for value in coefficients)
        found.append((a, b, c))
        low, high = 1 - distance, 1 + distance
    return tuple(found), low, high


def closest_to_one(low: float, high: float) -> list[float]:
    """a, b and c of the best a·s + b·s³ + c·s⁵ on an interval, and its largest distance from 1."""
    s = np.concatenate([np.geomspace(low, high, 4000), np.linspace(low, high, 4000)])
    powers, ones = np.stack([s, s**3, s**5], axis=1), np.ones((len(s), 1))
    both_sides = np.block([[powers, -ones], [-powers, -ones]])
    bounds = np.concatenate([np.ones(len(s)), -np.ones(len(s))])
    free = (None, None)
    return linprog([0, 0, 0, 1], A_ub=both_sides, b_ub=bounds, bounds=[free, free, free, (0, None)]).x.tolist()


def applied(polynomials: Polynomials, s: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    for a, b, c in polynomials:
        s = a * s + b * s**3 + c * s**5
    return s


def best_ms(matrices: Float[Tensor, "n r c"], polynomials: Polynomials) -> float:
    times = []
    with mock.patch.object(orthogonal, "POLYNOMIALS", polynomials):
        for _ in range(20):
            before = time.perf_counter()
            orthogonal.orthogonalize(matrices)
            times.append(time.perf_counter() - before)
    return 1e3 * min(times)


if __name__ == "__main__":
    main()
