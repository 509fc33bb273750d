"""STELLAR's clustering and alignment: time and peak memory of our form and the direct one, in one run.

    python -m lab.benchmarks.stellar_alignment --images 32 --tokens 16 --views 8 --prototypes 16384

Both forms start from unit embeddings, prototypes and a matching, compute balanced targets from the global tokens, and
end with both losses and the gradients of their sum. The direct form gathers the targets of every masked token, takes
the log-softmax and multiplies. Each measurement runs in its own process, the forms run alternately, and memory is the
increase of peak resident memory over that of the inputs. The best time of each form counts.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from asterism.ops.assignment import sinkhorn_knopp
from asterism.ops.prototype_alignment import prototype_cross_entropy

TARGET_TEMPERATURE, TEMPERATURE, ITERATIONS, WIDTH = 0.06, 0.12, 3, 256


@dataclass(frozen=True)
class Sizes:
    """The sizes of the problem."""

    images: int
    tokens: int
    views: int
    prototypes: int


@dataclass(frozen=True)
class Measurement:
    """The measurement of one process."""

    seconds: float
    mebibytes: float


def ours(anchors: Tensor, views: Tensor, prototypes: Tensor, which: Tensor) -> Tensor:
    targets = sinkhorn_knopp(anchors.detach() @ prototypes.detach().T, TARGET_TEMPERATURE, ITERATIONS)
    themselves = torch.arange(len(anchors))
    cluster = prototype_cross_entropy(anchors, prototypes, targets, themselves, TEMPERATURE)
    return cluster + prototype_cross_entropy(views, prototypes, targets, which, TEMPERATURE)


def direct(anchors: Tensor, views: Tensor, prototypes: Tensor, which: Tensor) -> Tensor:
    logits = anchors @ prototypes.T
    targets = sinkhorn_knopp(logits.detach(), TARGET_TEMPERATURE, ITERATIONS)
    cluster = -(targets * torch.log_softmax(logits / TEMPERATURE, dim=-1)).sum(dim=-1).mean()
    predictions = torch.log_softmax(views @ prototypes.T / TEMPERATURE, dim=-1)
    return cluster - (targets[which] * predictions).sum(dim=-1).mean()


FORMS: dict[str, Callable[..., Tensor]] = {"ours": ours, "direct": direct}


def inputs(sizes: Sizes) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Realistic embeddings: each masked token is similar to the global token it is matched with."""
    g = torch.Generator().manual_seed(0)
    rows = sizes.images * sizes.tokens
    anchors = F.normalize(torch.randn(rows, WIDTH, generator=g), dim=-1)
    prototypes = torch.randn(sizes.prototypes, WIDTH, generator=g)
    which = torch.randint(sizes.tokens, (sizes.images, sizes.views, sizes.tokens), generator=g)
    which = (which + sizes.tokens * torch.arange(sizes.images)[:, None, None]).flatten()
    noise = torch.randn(len(which), WIDTH, generator=g) / WIDTH**0.5
    views = F.normalize(anchors[which] + noise, dim=-1)
    return anchors, views, prototypes, which


def gradients(form: str, sizes: Sizes) -> tuple[Tensor, ...]:
    *tensors, which = inputs(sizes)
    leaves = [tensor.requires_grad_() for tensor in tensors]
    return torch.autograd.grad(FORMS[form](*leaves, which), leaves)


def measure(form: str, sizes: Sizes, threads: int) -> Measurement:
    torch.set_num_threads(threads)
    gradients(form, Sizes(2, 2, 2, 64))  # loads the libraries, so that their memory does not count
    *tensors, which = inputs(sizes)
    leaves = [tensor.requires_grad_() for tensor in tensors]
    before, seconds = _peak(), []
    for _ in range(3):
        start = time.perf_counter()
        torch.autograd.grad(FORMS[form](*leaves, which), leaves)
        seconds.append(time.perf_counter() - start)
    return Measurement(min(seconds), (_peak() - before) / 2**20)


def _peak() -> int:
    """Peak resident memory of this process so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _in_new_process(form: str, sizes: Sizes, threads: int) -> Measurement:
    context = multiprocessing.get_context("spawn")  # a forked child would inherit its parent's peak
    with context.Pool(1) as pool:
        return pool.apply(measure, (form, sizes, threads))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--views", type=int, default=8)
    parser.add_argument("--prototypes", type=int, default=16384)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    sizes = Sizes(options.images, options.tokens, options.views, options.prototypes)

    results: dict[str, list[Measurement]] = {form: [] for form in FORMS}
    for _ in range(options.repeats):
        for form, measurements in results.items():
            measurements.append(_in_new_process(form, sizes, options.threads))
    seconds = {form: min(m.seconds for m in measurements) for form, measurements in results.items()}
    memory = {form: statistics.median(m.mebibytes for m in measurements) for form, measurements in results.items()}
    print(f"{sizes}, {options.threads} threads, best of {options.repeats}")
    for form in FORMS:
        print(f"{form:>8}: {seconds[form]:6.2f} s   {memory[form]:7.0f} MiB at the peak")
    print(f"{'ratio':>8}: {seconds['direct'] / seconds['ours']:6.2f} ×   {memory['direct'] / memory['ours']:7.1f} ×")

    pairs = zip(gradients("ours", sizes), gradients("direct", sizes), strict=True)
    for name, (mine, theirs) in zip(("global tokens", "masked tokens", "prototypes"), pairs, strict=True):
        error = float((mine - theirs).abs().max() / theirs.abs().max())
        print(f"gradient of {name}: largest difference {error:.1e} of the largest entry")


if __name__ == "__main__":
    main()
