"""Peak memory of a step at published sizes, computed on fake tensors: nothing of that size is allocated.

    python benchmarks/memory.py [--recipe dino-imagenet-vitb16:32 mae-imagenet-vitb16:64] [--precision 32 bf16]

A recipe is given with its images per GPU. Methods whose shapes depend on the data (masked patches) cannot be computed
this way; `asterism pretrain --dry-run` extrapolates theirs from steps of 2 and 4 images.
"""

from __future__ import annotations

import argparse

from asterism.train.memory import estimate_memory
from asterism.train.recipe import load_recipe


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", nargs="+", default=["dino-imagenet-vitb16:32", "mae-imagenet-vitb16:64"])
    parser.add_argument("--precision", nargs="+", default=["32", "bf16"])
    options = parser.parse_args()
    print("| recipe | images | precision | weights, gradients, moments | peak | with checkpointing |")
    print("|---|---:|---|---:|---:|---:|")
    for given in options.recipe:
        name, _, images = given.partition(":")
        for precision in options.precision:
            recipe = load_recipe(name, ["data.path=scenes", f"trainer.precision='{precision}'"])
            memory = estimate_memory(recipe, int(images))
            if memory is None:
                print(f"| {name} | {images} | {precision} | depends on the data | | |", flush=True)
                continue
            sizes = (memory.fixed, memory.peak, memory.peak_checkpointed)
            row = " | ".join(f"{size / 1e9:.1f} GB" for size in sizes)
            print(f"| {name} | {images} | {precision} | {row} |", flush=True)


if __name__ == "__main__":
    main()
