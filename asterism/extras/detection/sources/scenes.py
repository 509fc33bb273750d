"""The things of built-in scenes as objects with boxes and masks."""

from __future__ import annotations

import torch

from asterism.data.sources.derived import Wrapped
from asterism.data.sources.source import Source
from asterism.extras.detection.sources import run_lengths
from asterism.extras.detection.sources.source import Objects, SampleWithObjects


class SceneObjects(Wrapped):
    """Scenes whose samples have objects; an image as a whole has no label."""

    has_masks = True

    def __init__(self, scenes: Source) -> None:
        super().__init__(scenes)
        assert scenes.classes is not None

    def __getitem__(self, index: int) -> SampleWithObjects:
        sample = self.source[index]
        assert sample.instances is not None
        assert sample.semantic is not None
        assert sample.boxes is not None
        numbers = torch.arange(1, 1 + len(sample.boxes))
        masks = sample.instances == numbers[:, None, None]
        first = masks.flatten(1).int().argmax(dim=1)  # a pixel of each thing, to read its class
        objects = Objects(
            boxes=sample.boxes.float(),
            labels=sample.semantic.flatten()[first] - 1,
            crowd=torch.zeros(len(numbers), dtype=torch.bool),
            areas=masks.sum(dim=(1, 2)).float(),
            masks=run_lengths.encode(masks),
        )
        return SampleWithObjects(sample.image, sample.key, objects=objects)

    def label(self, index: int) -> None:
        return None

    def class_counts(self) -> list[int]:
        """The dominant things alone; every class has some in a set of usual size."""
        counts = torch.zeros(len(self.source.classes or ()), dtype=torch.int64)
        for index in range(len(self.source)):
            counts[self.source.label(index)] += 1
        return counts.tolist()
