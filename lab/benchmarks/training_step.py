"""How much of the machine a training step uses: its FLOP/s relative to a large matrix product, in one process.

    python -m lab.benchmarks.training_step --recipe dino-cifar10 --steps 10
    python -m lab.benchmarks.training_step --recipe dino mae --batch 16 --set backbone.image_size=64 backbone.dim=192

Times are CPU time of one thread, of the fastest step and of the fastest product; both alternate. torch counts the FLOPs
while the step runs (matrix products and attention, forward and backward); they are not estimated. The views are random
pixels: loading data is not part of this measurement.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence

import torch
from torch.utils.flop_counter import FlopCounterMode

from asterism.methods.base import Method
from asterism.ops.random import fold_each
from asterism.train.building import build_method
from asterism.train.optim import build_optimizer, clip_gradients, set_schedules
from asterism.train.recipe import Recipe, load_recipe
from asterism.types import Batch, CropGeometry, Progress, View

_SIDE = 1536  # of the matrix product


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", nargs="+", default=["dino-cifar10", "mae-cifar10"])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--set", nargs="+", default=[], help="settings of the recipes")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name in arguments.recipe:
        recipe = load_recipe(name, ["data.path=scenes", "trainer.accelerator=cpu", *arguments.set])
        flops, seconds, peak = step_cost(recipe, arguments.batch, arguments.steps)
        print(
            f"{name}: {flops / 1e9:.1f} GFLOP per step of {arguments.batch} images, best {seconds * 1e3:.0f} ms, "
            f"{arguments.batch / seconds:.0f} images/s, {flops / seconds / 1e9:.0f} GFLOP/s = "
            f"{flops / seconds / peak:.0%} of a matrix product's {peak / 1e9:.0f}",
            flush=True,
        )


def step_cost(recipe: Recipe, batch_size: int, repeats: int) -> tuple[int, float, float]:
    """FLOPs of one optimiser step, the seconds of the fastest step, and the FLOP/s of the fastest large product."""
    method = build_method(recipe)
    optimizer = build_optimizer(method, recipe.optim)
    progress = Progress(step=1, steps=100, steps_per_epoch=10)
    batch = random_batch(method, batch_size)

    def step() -> None:
        set_schedules(optimizer, recipe.optim, progress, batch_size)
        method.loss(batch, progress).total.backward()
        clip_gradients(method.parameters(), recipe.optim)
        optimizer.step()
        optimizer.zero_grad()
        method.after_update(progress)

    with FlopCounterMode(display=False) as counter:
        step()
    left, right = torch.randn(_SIDE, _SIDE), torch.randn(_SIDE, _SIDE)
    fastest, product = best([step, lambda: left @ right], repeats)
    return counter.get_total_flops(), fastest, 2 * _SIDE**3 / product


def random_batch(method: Method, images: int) -> Batch:
    views = []
    for spec in method.views:
        zero, side = torch.zeros(images), torch.full((images,), float(spec.size))
        geometry = CropGeometry(zero, zero, side, side, side, side, torch.zeros(images, dtype=torch.bool))
        views.append(View(torch.randn(images, 3, spec.size, spec.size), geometry))
    index = torch.arange(images)
    return Batch(tuple(views), index, fold_each(index, 0))


def best(actions: Sequence[Callable[[], object]], repeats: int) -> list[float]:
    """CPU seconds of the fastest repetition of each, alternating."""
    times: list[list[float]] = [[] for _ in actions]
    for _ in range(repeats):
        for action, own in zip(actions, times, strict=True):
            start = time.process_time()
            action()
            own.append(time.process_time() - start)
    return [min(own) for own in times]


if __name__ == "__main__":
    main()
