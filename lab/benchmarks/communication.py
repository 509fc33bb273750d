"""Bytes that each process contributes to collectives in one step of every method, next to DDP's minimum.

    python -m lab.benchmarks.communication [--recipe dino-imagenet-vitb16 …] [--images 2]

DDP averages the gradients of all trained parameters: that is the minimum, 4 bytes each. What a method adds (centres,
memories, banks) is counted in one process, beside a pretended second one, and hardly depends on the network's size.
Rows of memories grow with the images of a step; the rest does not.
"""

from __future__ import annotations

import argparse
from collections import Counter
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor

from asterism.nn.learner import trained_parameters
from asterism.ops import collectives
from asterism.train.building import build_method
from asterism.train.cost import noise
from asterism.train.recipe import load_recipe
from asterism.types import Progress

SMALL = ["backbone.image_size=32", "backbone.patch_size=8", "backbone.dim=64", "backbone.depth=1"]


class _Two:
    """In place of `torch.distributed`: another process sends what this one sends. Counts the bytes of both kinds."""

    ReduceOp = dist.ReduceOp

    def __init__(self) -> None:
        self.bytes: Counter[str] = Counter()

    def is_available(self) -> bool:
        return True

    is_initialized = is_available

    def get_world_size(self) -> int:
        return 2

    def get_rank(self) -> int:
        return 0

    def get_backend(self) -> str:
        return "gloo"

    def all_reduce(self, tensor: Tensor, op: dist.ReduceOp) -> None:
        self.bytes["all-reduce"] += tensor.nbytes
        if op == dist.ReduceOp.SUM:
            tensor.mul_(2)

    def all_gather_into_tensor(self, gathered: Tensor, sent: Tensor) -> None:
        self.bytes["all-gather"] += sent.nbytes
        gathered.copy_(torch.cat([sent, sent]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", nargs="+", default=["dino", "ibot", "mae", "sop", "cribo", "flsl", "stellar"])
    parser.add_argument("--images", type=int, default=4)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| recipe | parameters' gradients | all-reduced besides | gathered per process |\n|---|---:|---:|---:|")
    for name in options.recipe:
        recipe = load_recipe(name, ["data.path=scenes", "trainer.accelerator=cpu", *SMALL])
        method = build_method(recipe).train()
        progress = Progress(step=500, steps=1000, steps_per_epoch=10)
        two = _Two()
        with mock.patch.object(collectives, "dist", two):
            torch.autograd.backward(
                method.loss(noise(method.views, options.images, torch.device("cpu")), progress).total
            )
            method.after_update(progress)
        row = (4 * trained_parameters(method), two.bytes["all-reduce"], two.bytes["all-gather"])
        print(f"| {name}, {options.images} images | " + " | ".join(f"{value:,} B" for value in row) + " |", flush=True)


if __name__ == "__main__":
    main()
