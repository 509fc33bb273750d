"""FLSL: time and peak memory of its loss compared with the direct form, and the cost of a step compared with DINO's.

    python -m lab.benchmarks.flsl_loss --images 32 --tokens 196 --prototypes 4096
    python -m lab.benchmarks.flsl_loss --images 8 --steps   # whole optimiser steps: FLSL, and DINO with as many views

The loss starts from the tokens of both networks and ends with the three terms and their gradients with respect to the
student's tokens and prototypes; the head's hidden layers are left out, because they are the same in both forms. The
direct form materialises attention maps, retrieves with autograd, and keeps probabilities of all queries over all
clusters. Each measurement runs in its own process, the forms run alternately, and memory is the increase of peak
resident memory over that of the inputs. The best time of each form counts.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import resource
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from asterism.methods.base import Method
from asterism.methods.dino import Dino, DinoConfig
from asterism.methods.flsl import Flsl, FlslConfig
from asterism.nn.backbone import BackboneConfig
from asterism.ops.mean_shift import mean_shift, mode_distance, take
from asterism.ops.random import fold_each
from asterism.ops.soft_clusters import Assignments, agreement, divergence
from asterism.ops.window_sampling import sample_windows
from asterism.types import Batch, CropGeometry, Progress, View

WIDTH, BOTTLENECK, STUDENT_TEMP, TEACHER_TEMP = 384, 256, 0.1, 0.04
INTRA, INTER = 0.1 / math.sqrt(WIDTH), 0.2 / math.sqrt(WIDTH)
WEIGHTS = (0.03, 1.0, 5.0)  # of the losses inside a view, across views, and of the volume


@dataclass(frozen=True)
class Sizes:
    """The sizes of the problem. Every image has two student crops and two teacher crops."""

    images: int
    tokens: int
    prototypes: int
    window: int


@dataclass(frozen=True)
class Inputs:
    """Tokens of two crops per network, a fixed map from tokens to the bottleneck, prototypes, positions of queries."""

    student: list[Tensor]
    teacher: list[Tensor]
    bottleneck: Tensor
    prototypes: Tensor
    teacher_prototypes: Tensor
    places: list[Tensor]

    @property
    def leaves(self) -> list[Tensor]:
        return [*self.student, self.prototypes]

    def project(self, tokens: Tensor) -> Tensor:
        return F.normalize(tokens @ self.bottleneck, dim=-1)


@dataclass(frozen=True)
class Measurement:
    """The measurement of one process."""

    seconds: float
    mebibytes: float


def ours(x: Inputs) -> Tensor:
    queries = [take(tokens, place) for tokens, place in zip(x.student, x.places, strict=True)]
    modes = [mean_shift(query, tokens, INTRA) for query, tokens in zip(queries, x.student, strict=True)]
    with torch.no_grad():
        positives = [mean_shift(query, keys, INTER) for query, keys in zip(queries, x.teacher[::-1], strict=True)]
        targets = Assignments(x.project(torch.cat(positives).flatten(0, 1)), x.teacher_prototypes, TEACHER_TEMP)
    tops = torch.cat(modes).flatten(0, 1)
    intra = mode_distance(torch.cat(queries).flatten(0, 1), tops)
    found = agreement(Assignments(x.project(tops), x.prototypes, STUDENT_TEMP), targets)
    uniform = torch.full((len(x.prototypes),), -math.log(len(x.prototypes)))
    terms = intra, found.cross_entropy, divergence(found.mean_probability, uniform)
    return sum((weight * term for weight, term in zip(WEIGHTS, terms, strict=True)), torch.zeros(()))


def direct(x: Inputs) -> Tensor:
    tokens, keys = torch.cat(x.student), torch.cat(x.teacher[::-1])
    image = torch.arange(len(tokens))[:, None]
    queries = tokens[image, torch.cat(x.places)]
    modes = (INTRA * queries @ tokens.transpose(1, 2)).softmax(dim=-1) @ tokens
    positives = (INTER * queries @ keys.transpose(1, 2)).softmax(dim=-1) @ keys
    logits = x.project(modes) @ x.prototypes.T
    teacher_logits = x.project(positives) @ x.teacher_prototypes.T
    p = (logits / STUDENT_TEMP).softmax(dim=-1)
    q = (teacher_logits.detach() / TEACHER_TEMP).softmax(dim=-1)
    intra = 2 - 2 * (F.normalize(queries, dim=-1) * F.normalize(modes, dim=-1)).sum(dim=-1).mean()
    inter = -(q * p.log()).sum(dim=-1).mean()
    mean = p.flatten(0, 1).mean(dim=0)
    volume = (mean * mean.log()).sum() + math.log(len(mean))
    return WEIGHTS[0] * intra + WEIGHTS[1] * inter + WEIGHTS[2] * volume


FORMS: dict[str, Callable[[Inputs], Tensor]] = {"ours": ours, "direct": direct}


def inputs(sizes: Sizes) -> Inputs:
    """Tokens of length √d, as after a final norm; the teacher's are similar to the student's."""
    g = torch.Generator().manual_seed(0)
    side = math.isqrt(sizes.tokens)
    student = [F.layer_norm(torch.randn(sizes.images, sizes.tokens, WIDTH, generator=g), [WIDTH]) for _ in range(2)]
    teacher = [F.layer_norm(tokens + torch.randn(tokens.shape, generator=g), [WIDTH]) for tokens in student]
    prototypes = F.normalize(torch.randn(sizes.prototypes, BOTTLENECK, generator=g), dim=1)
    keys = torch.arange(sizes.images)
    return Inputs(
        student=[tokens.requires_grad_() for tokens in student],
        teacher=teacher,
        bottleneck=torch.randn(WIDTH, BOTTLENECK, generator=g) / math.sqrt(WIDTH),
        prototypes=prototypes.requires_grad_(),
        teacher_prototypes=F.normalize(prototypes.detach() + 0.01 * torch.randn(prototypes.shape, generator=g), dim=1),
        places=[sample_windows(fold_each(keys, view), (side, side), sizes.window) for view in range(2)],
    )


def measure(form: str, sizes: Sizes, threads: int) -> Measurement:
    torch.set_num_threads(threads)
    small = inputs(Sizes(2, 4, 64, 1))
    torch.autograd.grad(FORMS[form](small), small.leaves)  # loads the libraries, so that their memory does not count
    x = inputs(sizes)
    before, seconds = _peak(), []
    for _ in range(3):
        start = time.perf_counter()
        torch.autograd.grad(FORMS[form](x), x.leaves)
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


def compare_losses(sizes: Sizes, threads: int, repeats: int) -> None:
    results: dict[str, list[Measurement]] = {form: [] for form in FORMS}
    for _ in range(repeats):
        for form, measurements in results.items():
            measurements.append(_in_new_process(form, sizes, threads))
    seconds = {form: min(m.seconds for m in measurements) for form, measurements in results.items()}
    memory = {form: statistics.median(m.mebibytes for m in measurements) for form, measurements in results.items()}
    print(f"{sizes}, {threads} threads, best of {repeats}")
    for form in FORMS:
        print(f"{form:>8}: {seconds[form]:6.2f} s   {memory[form]:7.0f} MiB at the peak")
    print(f"{'ratio':>8}: {seconds['direct'] / seconds['ours']:6.2f} ×   {memory['direct'] / memory['ours']:7.1f} ×")

    x = inputs(sizes)
    values = {form: function(x) for form, function in FORMS.items()}
    print(f"loss: difference {abs(float((values['ours'] / values['direct']).detach()) - 1):.1e} of its value")
    pairs = zip(*(torch.autograd.grad(values[form], x.leaves) for form in FORMS), strict=True)
    for name, (mine, theirs) in zip(("first crop", "second crop", "prototypes"), pairs, strict=True):
        error = float((mine - theirs).abs().max() / theirs.abs().max())
        print(f"gradient of {name}: largest difference {error:.1e} of the largest entry")


def compare_steps(images: int, prototypes: int, repeats: int) -> None:
    """Forward, backward, update and teacher, on 2 student and 2 teacher views: FLSL, and DINO without local views."""
    backbone = BackboneConfig(name="vit_small_patch16_224")
    config = {"out_dim": prototypes, "hidden_dim": 2048, "bottleneck_dim": BOTTLENECK}
    flsl = backbone.model_copy(update={"positions": "sincos"})
    contenders = {
        "flsl": _Stepper(Flsl(FlslConfig(**config), flsl), images),
        "dino": _Stepper(Dino(DinoConfig(**config, local_views=0), backbone), images),
    }
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(repeats + 1):
        for name, contender in contenders.items():
            start = time.process_time()
            contender.step()
            seconds[name].append(time.process_time() - start)
    best = {name: min(times[1:]) for name, times in seconds.items()}
    print(f"a step of {images} images, ViT-S/16 at 224 pixels, K = {prototypes}, best of {repeats}")
    for name, value in best.items():
        print(f"{name:>8}: {value:6.2f} s of CPU time")
    print(f"{'ratio':>8}: {best['flsl'] / best['dino']:6.2f} ×  (paper: 1.19 ×)")


class _Stepper:
    def __init__(self, method: Method, images: int) -> None:
        self.method = method
        self.optimizer = torch.optim.AdamW([p for p in method.parameters() if p.requires_grad], lr=1e-4)
        self.progress = Progress(step=5, steps=10, steps_per_epoch=1)
        self.batch = _noise(method, images)

    def step(self) -> None:
        self.method.loss(self.batch, self.progress).total.backward()
        nn.utils.clip_grad_norm_(self.method.parameters(), 3.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.method.after_update(self.progress)


def _noise(method: Method, images: int) -> Batch:
    g = torch.Generator().manual_seed(0)
    zero, side, never = torch.zeros(images), torch.full((images,), 224.0), torch.zeros(images, dtype=torch.bool)
    geometry = CropGeometry(zero, zero, side, side, side, side, never)
    views = tuple(View(torch.randn(images, 3, spec.size, spec.size, generator=g), geometry) for spec in method.views)
    return Batch(views, torch.arange(images), torch.arange(images))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=196)
    parser.add_argument("--prototypes", type=int, default=4096)
    parser.add_argument("--window", type=int, default=2, help="1: every token is a query")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--steps", action="store_true", help="compare whole steps with DINO instead of the loss")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.steps:
        compare_steps(options.images, options.prototypes, options.repeats)
    else:
        sizes = Sizes(options.images, options.tokens, options.prototypes, options.window)
        compare_losses(sizes, options.threads, options.repeats)


if __name__ == "__main__":
    main()
