"""How much of the machine a training step uses: its FLOP/s relative to a large matrix product, in one process.

    python benchmarks/training_step.py --recipe dino-cifar10 --steps 10

torch counts the FLOPs while the step runs (matrix products and attention, forward and backward); they are not
estimated. The views are random pixels: loading data is not part of this measurement.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from torch.utils.flop_counter import FlopCounterMode

from asterism.methods.base import Method
from asterism.ops.random import fold_each
from asterism.train.building import build_method
from asterism.train.optim import build_optimizer, clip_gradients, set_schedules
from asterism.train.recipe import Recipe, load_recipe
from asterism.types import Batch, CropGeometry, Progress, View


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", nargs="+", default=["dino-cifar10", "mae-cifar10"])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=10)
    arguments = parser.parse_args()
    peak = matmul_peak()
    print(f"{torch.get_num_threads()} threads, matrix product of side 1536: {peak / 1e9:.0f} GFLOP/s")
    for name in arguments.recipe:
        recipe = load_recipe(name, ["data.path=scenes"])
        flops, seconds = step_cost(recipe, arguments.batch, arguments.steps)
        print(
            f"{name}: {flops / 1e9:.1f} GFLOP per step of {arguments.batch} images, best {seconds * 1e3:.0f} ms, "
            f"{arguments.batch / seconds:.0f} images/s, {flops / seconds / 1e9:.0f} GFLOP/s = "
            f"{flops / seconds / peak:.0%} of the matrix product"
        )


def matmul_peak(side: int = 1536) -> float:
    """FLOP/s of the fastest of several float32 products."""
    left, right = torch.randn(side, side), torch.randn(side, side)
    return 2 * side**3 / best(lambda: left @ right, 8)


def step_cost(recipe: Recipe, batch_size: int, repeats: int) -> tuple[int, float]:
    """FLOPs of one optimiser step, and the seconds of the fastest step."""
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
    return counter.get_total_flops(), best(step, repeats)


def random_batch(method: Method, images: int) -> Batch:
    views = []
    for spec in method.views:
        zero, side = torch.zeros(images), torch.full((images,), float(spec.size))
        geometry = CropGeometry(zero, zero, side, side, side, side, torch.zeros(images, dtype=torch.bool))
        views.append(View(torch.randn(images, 3, spec.size, spec.size), geometry))
    index = torch.arange(images)
    return Batch(tuple(views), index, fold_each(index, 0))


def best(action: Callable[[], object], repeats: int) -> float:
    action()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return min(times)


if __name__ == "__main__":
    main()
