"""Peak memory of a training step: estimated for published sizes, or estimated and measured for small ones.

    python -m lab.benchmarks.memory [--recipe dino-imagenet-vitb16:32 mae-imagenet-vitb16:64] [--precision 32 bf16]
    python -m lab.benchmarks.memory --measure [--recipe dino:8 mae:8 …]

A recipe is given with its images per GPU. Its memory is extrapolated from steps of 2 and 4 images, as
`asterism pretrain --dry-run` does.

Measured are the bytes that torch holds in the second step on a CPU, from the profiler's record of every allocation:
64 px, patches of 8, width 192, 6 blocks.
"""

from __future__ import annotations

import argparse

import torch
from torch.profiler import ProfilerActivity, profile

from asterism.train.building import build_method
from asterism.train.cost import noise, step_cost
from asterism.train.optim import build_optimizer
from asterism.train.recipe import Recipe, load_recipe
from asterism.types import Progress

SMALL = ["backbone.image_size=64", "backbone.patch_size=8", "backbone.dim=192", "backbone.depth=6"]
METHODS = ("dino", "ibot", "mae", "sop", "massl", "cribo", "flsl", "stellar")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", nargs="+")
    parser.add_argument("--precision", nargs="+", default=["32", "bf16"])
    parser.add_argument("--measure", action="store_true", help="small networks, next to a real step")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.measure:
        compare(options.recipe or [f"{method}:8" for method in METHODS])
    else:
        estimate(options.recipe or ["dino-imagenet-vitb16:32", "mae-imagenet-vitb16:64"], options.precision)


def estimate(recipes: list[str], precisions: list[str]) -> None:
    print("| recipe | images | precision | peak | with checkpointing |\n|---|---:|---|---:|---:|")
    for given in recipes:
        name, _, images = given.partition(":")
        for precision in precisions:
            sizes = []
            for checkpointing in ("false", "true"):
                recipe = load_recipe(name, ["data.path=scenes", f"backbone.checkpointing={checkpointing}"])
                cost = step_cost(build_method(recipe), recipe.optim, int(images), precision=precision)
                sizes.append(f"{cost.memory / 1e9:.1f} GB")
            print(f"| {name} | {images} | {precision} | {' | '.join(sizes)} |", flush=True)


def compare(recipes: list[str]) -> None:
    print("| method | images | estimated | measured | ratio |\n|---|---:|---:|---:|---:|")
    for given in recipes:
        name, _, images = given.partition(":")
        recipe = load_recipe(name, ["data.path=scenes", "trainer.accelerator=cpu", *SMALL])
        estimated = step_cost(build_method(recipe), recipe.optim, int(images)).memory
        measured = measured_peak(recipe, int(images))
        sizes = f"{estimated / 1e6:.1f} MB | {measured / 1e6:.1f} MB | {estimated / measured:.2f}"
        print(f"| {name} | {images} | {sizes} |", flush=True)


def measured_peak(recipe: Recipe, images: int) -> int:
    """Peak bytes of torch in the second step, with weights, buffers and moments."""
    method = build_method(recipe).train()
    optimizer = build_optimizer(method, recipe.optim)
    batch, progress = noise(method.views, images, torch.device("cpu")), Progress(500, 1000, 10)

    def step() -> None:
        torch.autograd.backward(method.loss(batch, progress).total)
        optimizer.step()
        optimizer.zero_grad()
        method.after_update(progress)

    step()
    moments = (value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value))
    before = sum(t.numel() * t.element_size() for t in (*method.parameters(), *method.buffers(), *moments))
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        step()
    now = peak = 0
    results = recorded.profiler.kineto_results  # type: ignore[union-attr]
    for event in sorted((e for e in results.events() if e.name() == "[memory]"), key=lambda e: e.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return before + peak


if __name__ == "__main__":
    main()
