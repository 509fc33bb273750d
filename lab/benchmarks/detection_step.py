"""A training step of our Mask R-CNN on a CPU, alternating with torchvision's own model around the same backbone.

    OMP_NUM_THREADS=1 python -m lab.benchmarks.detection_step [--steps 12] [--size 256]

Both have the same backbone with the same pyramid, so that FLOPs are equal, the same heads and the same images. Goal:
ours takes at most 1.1 times as long. Times are those of this process's CPU, which other processes disturb little.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models.detection import MaskRCNN
from torchvision.models.detection.anchor_utils import AnchorGenerator

from asterism.extras.detection.detect import Detect, DetectConfig
from asterism.finetuning.task import Start, TaskBatch
from asterism.nn.backbone import BackboneConfig, build_backbone
from asterism.types import Progress

_CLASSES = 20
_PROGRESS = Progress(0, 10, 5)


class _SameBackbone(nn.Module):
    """The backbone and pyramid of our model, as torchvision's expects them."""

    def __init__(self, task: Detect) -> None:
        super().__init__()
        self.backbone, self.features = task.backbone, task.head.features
        self.out_channels = 256

    def forward(self, images: Tensor) -> Any:
        return self.features(self.backbone, images, None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--size", type=int, default=256, help="pixels per side")
    parser.add_argument("--images", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = BackboneConfig(name="vit_small_patch16_224", image_size=options.size, dim=192, depth=12, heads=3)
    names = tuple(str(number) for number in range(_CLASSES))
    canvas = {"canvas": [options.size, options.size]}
    settings = DetectConfig.parse({"head": "mask-rcnn", "sizes": canvas})
    task = Detect(settings, Start(build_backbone(config), (0.5,) * 3, (0.5,) * 3, options.size, names))
    batch = _batch(options.images, options.size)
    anchors = task.head.rpn.anchor_generator
    theirs = MaskRCNN(
        _SameBackbone(task),
        1 + _CLASSES,
        min_size=options.size,
        max_size=options.size,
        image_mean=[0.0, 0.0, 0.0],  # the images are normalised already: with others, other regions would be chosen
        image_std=[1.0, 1.0, 1.0],
        rpn_anchor_generator=AnchorGenerator(anchors.sizes, anchors.aspect_ratios),
    ).train()
    theirs.rpn.load_state_dict(task.head.rpn.state_dict())
    theirs.roi_heads.load_state_dict(task.head.roi_heads.state_dict())
    targets = [{**truth, "labels": truth["labels"] + 1} for truth in batch.truths]

    def our_step() -> None:
        torch.autograd.backward(task.loss(batch, _PROGRESS).total)
        task.zero_grad()

    def their_step() -> None:
        losses = theirs(list(batch.images), targets)
        torch.autograd.backward(torch.stack(list(losses.values())).sum())
        theirs.zero_grad()

    our_step()
    their_step()
    ours, others = [], []
    for _ in range(options.steps):
        ours.append(_seconds(our_step))
        others.append(_seconds(their_step))
    one, other = statistics.median(ours), statistics.median(others)
    print(f"ours {one:.3f} s, torchvision {other:.3f} s per step of {options.images} images: {one / other:.3f} times")


def _batch(images: int, size: int) -> TaskBatch:
    truths = []
    for number in range(images):
        corners = torch.tensor([[10.0, 20.0], [60.0, 30.0], [120.0, 100.0], [30.0, 150.0]]) * size / 256 + number
        boxes = torch.cat([corners, corners + size / 5], dim=1)
        masks = torch.zeros(4, size, size, dtype=torch.uint8)
        for place, (left, top, right, bottom) in enumerate(boxes.int().tolist()):
            masks[place, top:bottom, left:right] = 1
        truths.append({"boxes": boxes, "labels": torch.arange(4), "masks": masks, "size": (size, size)})
    return TaskBatch(torch.randn(images, 3, size, size), tuple(truths), torch.arange(images))


def _seconds(action: Callable[[], None]) -> float:
    start = time.process_time()
    action()
    return time.process_time() - start


if __name__ == "__main__":
    main()
