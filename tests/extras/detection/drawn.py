"""Images with drawn rectangles, whose boxes and masks are known, and the smallest sensible detectors."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from asterism.extras.detection.detect import Detect, DetectConfig
from asterism.extras.detection.sources.run_lengths import encode
from asterism.extras.detection.sources.source import Objects, SampleWithObjects
from asterism.finetuning.task import TaskBatch
from asterism.nn.backbone import BackboneConfig
from tests.finetuning.tiny import BACKBONE, start

SMALL: Mapping[str, Any] = {
    "channels": 8,
    "hidden": 16,
    "anchor_scale": 2.0,
    "proposals": 24,
    "test_proposals": 24,
    "rpn_regions": 16,
    "regions": 16,
    "score_threshold": 0.0,
    "detections": 10,
}
MASKS: Mapping[str, Any] = {**SMALL, "mask_channels": 8, "mask_convolutions": 1}
HEADS: Mapping[str, Mapping[str, Any]] = {
    "faster-rcnn": SMALL,
    "mask-rcnn": MASKS,
    "cascade-mask-rcnn": MASKS,
    "yolos": {"tokens": 6},
}


def detector(head: str, config: BackboneConfig = BACKBONE, size: int = 32, **changes: Any) -> Detect:
    """A tiny detector of three classes with fixed fresh weights."""
    torch.manual_seed(0)
    settings = {"name": head, **HEADS[head], **changes}
    return Detect(DetectConfig.parse({"head": settings, "sizes": {"canvas": [size, size]}}), start(config, 3, size))


def drawn_sample(number: int, boxes: Sequence[tuple[int, int, int, int]], size: tuple[int, int] = (32, 32)) -> Any:
    """Bright rectangles on noise; their masks are the rectangles. Classes are 0, 1, 2, 0 …"""
    draw = torch.Generator().manual_seed(number)
    image = torch.randint(0, 60, (3, *size), dtype=torch.uint8, generator=draw)
    masks = torch.zeros(len(boxes), *size, dtype=torch.bool)
    for place, (left, top, right, bottom) in enumerate(boxes):
        masks[place, top:bottom, left:right] = True
        image[place % 3, top:bottom, left:right] = 250
    objects = Objects(
        boxes=torch.tensor(boxes, dtype=torch.float32).view(-1, 4),
        labels=torch.arange(len(boxes)) % 3,
        crowd=torch.zeros(len(boxes), dtype=torch.bool),
        areas=masks.sum(dim=(1, 2)).float(),
        masks=encode(masks) if len(boxes) else (),
    )
    return SampleWithObjects(image, str(number), objects=objects)


SAMPLES = [
    drawn_sample(0, [(2, 3, 14, 15), (16, 4, 30, 28)]),
    drawn_sample(1, [(5, 8, 25, 20)]),
    drawn_sample(2, []),
    drawn_sample(3, [(1, 1, 9, 30), (12, 12, 22, 22), (20, 2, 31, 11)]),
]


def batch_for(task: Detect, places: Sequence[int] = range(4)) -> TaskBatch:
    return task.samples()([SAMPLES[place] for place in places], [100 + place for place in places])


def coco_file(folder: Path, changes: Any = None, images: int = 10) -> Path:
    """A COCO annotation file with drawn rectangles, category ids with holes, a crowd, and an image without boxes."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(0)
    content: dict[str, Any] = {
        "images": [],
        "annotations": [],
        "categories": [{"id": 7, "name": "square"}, {"id": 90, "name": "bar"}],
    }
    for number in range(images):
        pixels = draw.integers(0, 60, (24, 32, 3)).astype(np.uint8)
        content["images"].append({"id": 5 * number, "file_name": f"{number}.png", "height": 24, "width": 32})
        for place in range(2 if number else 0):
            left, top = int(draw.integers(0, 14)), int(draw.integers(0, 10))
            width, height = (8, 8) if place else (16, 6)
            pixels[top : top + height, left : left + width, place] = 250
            corners = [left, top, left + width, top, left + width, top + height, left, top + height]
            content["annotations"].append(
                {
                    "id": 1 + len(content["annotations"]),
                    "image_id": 5 * number,
                    "category_id": 7 if place else 90,
                    "bbox": [left, top, width, height],
                    "area": width * height,
                    "iscrowd": 0,
                    "segmentation": [corners],
                }
            )
        Image.fromarray(pixels).save(folder / f"{number}.png")
    crowd = {"size": [24, 32], "counts": [0, 24 * 4, 24 * 28]}
    content["annotations"].append(
        {
            "id": 1000,
            "image_id": 5,
            "category_id": 7,
            "bbox": [0, 0, 4, 24],
            "area": 96,
            "iscrowd": 1,
            "segmentation": crowd,
        }
    )
    if changes is not None:
        changes(content)
    path = folder / "coco.json"
    path.write_text(json.dumps(content))
    return path
