"""The cost of a training step with each head of segmentation, relative to the network alone.

    python -m lab.benchmarks.segmentation_heads

CPU time of one thread, so other programs on the machine do not change the result much. "network" is the forward and
backward pass of the tokens that the head reads, or only the forward pass if the head freezes the network.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

from asterism.finetuning.segmentation.heads import HEADS
from asterism.finetuning.segmentation.segment import Segment, SegmentConfig
from asterism.finetuning.task import Start, TaskBatch
from asterism.nn.backbone import BackboneConfig, build_backbone
from asterism.types import Progress


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--network", default="vit_small_patch16_224")
    words.add_argument("--size", type=int, default=224, help="pixels per side")
    words.add_argument("--images", type=int, default=2)
    words.add_argument("--classes", type=int, default=21)
    words.add_argument("--rounds", type=int, default=3)
    given = words.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    images = torch.randn(given.images, 3, given.size, given.size)
    masks = torch.randint(0, given.classes, (given.images, given.size, given.size), dtype=torch.uint8)
    batch = TaskBatch(images, (masks,), torch.arange(given.images))
    print("| head | network, s | step, s | step over network |\n|---|---|---|---|")
    for name in HEADS:
        backbone = build_backbone(BackboneConfig(name=given.network, image_size=given.size))
        names = tuple(str(number) for number in range(given.classes))
        start = Start(backbone, (0.5,) * 3, (0.5,) * 3, given.size, names)
        task = Segment(SegmentConfig.parse({"head": name}), start).train()
        alone = _seconds(lambda task=task: _network(task, batch), given.rounds)
        step = _seconds(lambda task=task: _backward(task.loss(batch, Progress(0, 9, 3)).total), given.rounds)
        print(f"| {name} | {alone:.3f} | {step:.3f} | {step / alone:.2f} |", flush=True)


def _network(task: Segment, batch: TaskBatch) -> None:
    assert isinstance(batch.images, torch.Tensor)
    with torch.set_grad_enabled(not task.config.freezes):
        tokens = task.head.read(task.backbone, batch.images, None)
    if not task.config.freezes:
        _backward(torch.stack([each.patches.sum() for each in tokens]).sum())


def _backward(value: torch.Tensor) -> None:
    torch.autograd.backward(value)


def _seconds(action: Callable[[], None], rounds: int) -> float:
    """The shortest CPU time of some calls, after one to warm up."""
    action()
    times = []
    for _ in range(rounds):
        begin = time.process_time()
        action()
        times.append(time.process_time() - begin)
    return min(times)


if __name__ == "__main__":
    main()
