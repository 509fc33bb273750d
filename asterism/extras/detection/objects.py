"""What is found in an image, and what is truly there, in pixels of that image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jaxtyping import Bool, Float, Int
from torch import Tensor
from torchvision.ops import box_iou

from asterism.extras.detection.sources.run_lengths import RunLengths, areas, decode
from asterism.finetuning.task import Prediction, Truth

SURE = 0.5  # score from which a detection is drawn, and counted as found
_OVERLAP = 0.5  # of boxes: intersection over union from which a detection has found an object


@dataclass(frozen=True)
class Detections(Prediction):
    """Objects found in an image, by descending score."""

    boxes: Float[Tensor, "n 4"]  # left, top, right, bottom
    scores: Float[Tensor, " n"]
    labels: Int[Tensor, " n"]  # places in `names`
    run_lengths: tuple[RunLengths, ...] | None  # masks, compressed; None: the head has none
    names: tuple[str, ...]
    size: tuple[int, int]  # height and width of the image

    def __len__(self) -> int:
        return len(self.scores)

    @property
    def masks(self) -> Bool[Tensor, "n h w"] | None:
        """The pixels of each object."""
        return None if self.run_lengths is None else decode(self.run_lengths, self.size)

    def top(self, least: float = SURE) -> list[tuple[str, float, tuple[float, ...]]]:
        """Class, score and box of the detections with at least this score."""
        rows = zip(self.labels.tolist(), self.scores.tolist(), self.boxes.tolist(), strict=True)
        return [(self.names[label], score, tuple(box)) for label, score, box in rows if score >= least]

    def as_coco(self, image: int) -> list[dict[str, Any]]:
        """Results in COCO's form; categories count from 1. The area is that of the mask, if there is one."""
        records = []
        pixels = areas(self.run_lengths or ()).tolist()
        for place, (label, score, box) in enumerate(
            zip(self.labels.tolist(), self.scores.tolist(), self.boxes.tolist(), strict=True)
        ):
            record = {"id": place + 1, "image_id": image, "category_id": label + 1, "score": score, **_extent(box)}
            if self.run_lengths is not None:
                record |= {"segmentation": self.run_lengths[place], "area": pixels[place]}
            records.append(record)
        return records


@dataclass(frozen=True)
class TrueObjects(Truth):
    """The annotated objects of an image."""

    boxes: Float[Tensor, "m 4"]
    labels: Int[Tensor, " m"]
    crowd: Bool[Tensor, " m"]
    areas: Float[Tensor, " m"]
    run_lengths: tuple[RunLengths, ...] | None
    names: tuple[str, ...]
    size: tuple[int, int]

    @property
    def masks(self) -> Bool[Tensor, "m h w"] | None:
        return None if self.run_lengths is None else decode(self.run_lengths, self.size)

    def as_coco(self, image: int) -> list[dict[str, Any]]:
        """Annotations in COCO's form."""
        records = []
        for place, (label, box, area, crowd) in enumerate(
            zip(self.labels.tolist(), self.boxes.tolist(), self.areas.tolist(), self.crowd.tolist(), strict=True)
        ):
            record = {"id": place + 1, "image_id": image, "category_id": label + 1, **_extent(box), "area": area}
            record |= {"iscrowd": int(crowd), "ignore": int(crowd)}
            if self.run_lengths is not None:
                record["segmentation"] = self.run_lengths[place]
            records.append(record)
        return records


def found_pairs(prediction: Detections, truth: TrueObjects) -> tuple[list[tuple[int, int]], list[int], list[int]]:
    """Sure detections with the objects they found, by descending score; detections without one; objects not found.

    Detections in crowds count as neither.
    """
    sure = [place for place, score in enumerate(prediction.scores.tolist()) if score >= SURE]
    overlaps = box_iou(prediction.boxes, truth.boxes)
    free = {place for place, crowd in enumerate(truth.crowd.tolist()) if not crowd}
    labels = truth.labels.tolist()
    pairs, wrong = [], []
    for place in sure:
        label = int(prediction.labels[place])
        candidates = [each for each in free if labels[each] == label and overlaps[place, each] >= _OVERLAP]
        if candidates:
            best = max(candidates, key=lambda each: float(overlaps[place, each]))
            free.remove(best)
            pairs.append((place, best))
        elif not any(crowd and overlap > 0 for crowd, overlap in zip(truth.crowd, overlaps[place], strict=True)):
            wrong.append(place)
    return pairs, wrong, sorted(free)


def _extent(box: list[float]) -> dict[str, Any]:
    left, top, right, bottom = box
    return {"bbox": [left, top, right - left, bottom - top], "area": (right - left) * (bottom - top)}
