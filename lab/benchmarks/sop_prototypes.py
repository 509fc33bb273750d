"""Self-organizing prototypes: grouped sums compared with the contribution matrix.

    python -m lab.benchmarks.sop_prototypes [--threads 2] [--repeats 5]

Forward and backward of one task (224 rows, 4096 prototypes of 8 neighbours and an anchor, 256 channels) on the same
inputs, each form in its own process to measure its peak memory; times are the best of the repeats. The naive time does
not include building the matrix, which is necessary for every task. On a busy machine use --threads 1.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from asterism.ops.prototypes import Contribution, Prototypes, Supports, grouped_cross_entropy, organize

ROWS, PROTOTYPES, NEIGHBOURS, DIM = 224, 4096, 8, 256
STUDENT_TEMP = 0.1
FORM: tuple[Contribution, float] = ("similarity", 0.1)


def inputs() -> tuple[Tensor, Tensor, Prototypes]:
    """Rows, targets and prototypes; supports are random rows near their anchors, so that no search is needed."""
    draws = torch.Generator().manual_seed(0)
    members = torch.randn(NEIGHBOURS + 1, PROTOTYPES, DIM, generator=draws)
    members[:-1].mul_(0.7).add_(members[-1])  # the last member of each is its anchor
    members /= members.norm(dim=-1, keepdim=True)
    similarity = torch.stack([(row * members[-1]).sum(-1) for row in members], dim=1)
    places = torch.arange(similarity.numel()).view(NEIGHBOURS + 1, PROTOTYPES).T
    # Only the contributions: a placeholder avoids a copy of the memory bank, and the members are set afterwards.
    weights = organize(
        torch.zeros(len(places) * places.shape[1], 1), Supports(places, similarity, places[:, -1]), *FORM
    )
    rows = F.normalize(torch.randn(ROWS, DIM, generator=draws), dim=1)
    targets = torch.softmax(3 * torch.randn(ROWS, PROTOTYPES, generator=draws), dim=1)
    return rows, targets, replace(weights, members=members)


def contribution_matrix(prototypes: Prototypes) -> Tensor:
    """Y: one row per member, one column per prototype."""
    m, k, _ = prototypes.members.shape
    matrix = prototypes.everywhere.reshape(m * k, 1).repeat(1, k)
    own = torch.arange(k).repeat(m)
    matrix[torch.arange(m * k), own] += prototypes.own.flatten()
    return matrix


def naive(rows: Tensor, targets: Tensor, members: Tensor, matrix: Tensor) -> tuple[Tensor, Tensor]:
    rows = rows.clone().requires_grad_()
    p = torch.softmax(rows @ members.T / STUDENT_TEMP, dim=1) @ matrix
    loss = -(targets * p.log()).sum(dim=1).mean()
    loss.backward()
    return loss.detach(), rows.grad


def grouped(rows: Tensor, targets: Tensor, prototypes: Prototypes) -> tuple[Tensor, Tensor]:
    rows = rows.clone().requires_grad_()
    loss = grouped_cross_entropy(rows, targets, prototypes, STUDENT_TEMP).mean()
    loss.backward()
    return loss.detach(), rows.grad


def measure(form: str, threads: int, repeats: int) -> dict[str, object]:
    """Seconds, peak megabytes (in addition to those before the prototypes) and results of one form."""
    torch.set_num_threads(threads)
    torch.rand(64, 64) @ torch.rand(64, 64)  # the linear algebra library's own buffers
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    rows, targets, prototypes = inputs()
    if form == "naive":
        members, matrix = prototypes.members.flatten(0, 1), contribution_matrix(prototypes)
        seconds, (loss, gradient) = timed(lambda: naive(rows, targets, members, matrix), repeats)
    else:
        seconds, (loss, gradient) = timed(lambda: grouped(rows, targets, prototypes), repeats)
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return {"seconds": seconds, "megabytes": peak, "loss": loss.numpy(), "gradient": gradient.numpy()}


def timed(run: Callable[[], tuple[Tensor, Tensor]], repeats: int) -> tuple[float, tuple[Tensor, Tensor]]:
    times, result = [], run()
    for _ in range(repeats):
        start = time.perf_counter()
        result = run()
        times.append(time.perf_counter() - start)
    return min(times), result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        results = {form: pool.apply(measure, (form, options.threads, options.repeats)) for form in ("naive", "grouped")}
    slow, fast = results["naive"], results["grouped"]
    for form, result in results.items():
        print(f"{form:10} {result['seconds']:8.3f} s forward and backward, {result['megabytes']:8.1f} MB peak")
    loss = abs(slow["loss"] - fast["loss"]) / abs(slow["loss"])
    gradient = abs(slow["gradient"] - fast["gradient"]).max() / abs(slow["gradient"]).max()
    faster, smaller = (slow[what] / fast[what] for what in ("seconds", "megabytes"))
    print(f"ratio      {faster:8.1f} × faster, {smaller:8.1f} × less memory")
    print(f"relative difference of the loss {loss:.1e}, of the gradient {gradient:.1e}")


if __name__ == "__main__":
    main()
