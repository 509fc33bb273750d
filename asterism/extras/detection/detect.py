"""Detection: the box, class and perhaps mask of every object. Faster, Mask and Cascade Mask R-CNN, and YOLOS.

Heads, in `asterism.extras.detection.heads`:

    faster-rcnn        boxes, by torchvision's parts on a pyramid from the tokens of four blocks
    mask-rcnn          boxes and masks
    cascade-mask-rcnn  the same in three stages that refine each other
    yolos              boxes, by detection tokens in the sequence of a plain ViT

`task.head.pyramid=simple` and `task.head.window=14` make the backbone ViTDet's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from pydantic import SerializeAsAny, field_validator
from torch import Tensor

from asterism.data import Sample, Source
from asterism.data.loader import Make
from asterism.errors import UserError
from asterism.extras.detection.average_precision import AveragePrecision
from asterism.extras.detection.heads import HEADS, DetectHeadConfig, Found, MaskRcnnConfig, build_head
from asterism.extras.detection.images import (
    ObjectImages,
    SizesConfig,
    fitted,
    padded,
    resolved_canvas,
)
from asterism.extras.detection.objects import SURE, Detections, TrueObjects, found_pairs
from asterism.extras.detection.output import CocoResults, class_section, drawn_objects
from asterism.extras.detection.sources.open import open_objects
from asterism.extras.detection.sources.run_lengths import RunLengths, coco_library, encode
from asterism.extras.detection.sources.source import ObjectSource, RelabelledObjects, SampleWithObjects
from asterism.extras.detection.uavdt_precision import UavdtPrecision
from asterism.finetuning.task import Metric, PredictionWriter, Start, Task, TaskBatch, TaskConfig, chosen_head
from asterism.ops.normalise import normalise
from asterism.types import Losses, Progress
from asterism.viz.page import Section

_AT_ONCE = 4  # images in a forward pass of `predict`


class DetectConfig(TaskConfig):
    """Settings of the task. The optimiser's are those that plain ViTs are fine-tuned with on COCO."""

    recipe_defaults: ClassVar[Mapping[str, Any]] = MappingProxyType(
        {
            "optim": {"lr": 1e-4, "lr_scaling": "none", "weight_decay": 0.05, "warmup_epochs": 0.5, "clip": 1.0},
            "average": None,
            "trainer": {"batch_size": 8},
        }
    )

    name: Literal["detect"] = "detect"
    head: SerializeAsAny[DetectHeadConfig] = MaskRcnnConfig()
    sizes: SizesConfig = SizesConfig()
    flawed_boxes: Literal["refuse", "leave-out"] = "refuse"  # outside their image or without area; COCO has two such
    protocol: Literal["coco", "uavdt"] = "coco"  # what AP means: COCO's, or that of the UAVDT benchmark
    empty_classes: Literal["refuse", "keep"] = "refuse"  # classes without a single object in the training data

    @field_validator("head", mode="before")
    @classmethod
    def _choose_head(cls, value: Any) -> Any:
        return chosen_head(value, HEADS)

    def usual_epochs(self, dim: int) -> float:
        """Four times COCO's usual schedule of 12: other data is smaller."""
        return 48.0

    def usual_layer_decay(self, dim: int) -> float:
        return 0.8


class Detect(Task):
    """A network with a head for objects."""

    Config = DetectConfig
    primary = "AP"
    purpose = "object-detection"
    meanings = MappingProxyType(
        {
            "boxes": "left, top, right, bottom in pixels of the input, by descending score [batch, detections, 4]",
            "scores": "the probability of each detection; 0: the row is not used [batch, detections]",
            "labels": "the class of each detection, counted from 0; -1: the row is not used [batch, detections]",
            "masks": "the probability that each of 28×28 cells of a box belongs to its object "
            "[batch, detections, 28, 28]",
        }
    )
    config: DetectConfig
    canvas: tuple[int, int]
    blank: Float[Tensor, " side"]  # zeros, which a recorded graph cannot make without naming a device

    def __init__(self, config: DetectConfig, start: Start) -> None:
        super().__init__(config, start)
        self.head = build_head(config.head, start.backbone, len(start.classes))
        self.canvas = resolved_canvas(config.sizes, start.image_size, self.head.stride)
        self.register_buffer("blank", torch.zeros(max(self.canvas)), persistent=False)

    @classmethod
    def open(cls, config: DetectConfig, path: str, split: str | None) -> Source:
        coco_library()  # without it masks are neither read nor measured: refuse before anything is trained
        source = open_objects(path, split, leave_out_flawed=config.flawed_boxes == "leave-out")
        if isinstance(config.head, MaskRcnnConfig) and not source.has_masks:
            raise UserError(
                f"head = {config.head.name} learns masks, but {source.name} has boxes only; choose head=faster-rcnn"
            )
        if config.empty_classes == "refuse":
            _check_classes(source)
        return source

    @classmethod
    def open_test(cls, config: DetectConfig, path: str, split: str | None) -> Source:
        """Unlike training images, those to test on may lack some classes."""
        return super().open_test(config.model_copy(update={"empty_classes": "keep"}), path, split)

    def labelled_like_training(self, source: Source) -> Source:
        names = source.classes or []
        if tuple(names) == self.classes:
            return source
        strange = [name for name in names if name not in self.classes]
        if strange:
            raise UserError(
                f"{source.name} has the class {strange[0]!r}, which the model was not trained on; its classes are "
                f"{', '.join(self.classes[:10])}{' …' if len(self.classes) > 10 else ''}"
            )
        return RelabelledObjects(source, self.classes, [self.classes.index(name) for name in names])

    def samples(self) -> Make[TaskBatch]:
        return ObjectImages(self.config.sizes, self.canvas, self.mean, self.std, self.head.has_masks)

    def loss(self, batch: TaskBatch, progress: Progress) -> Losses:
        assert isinstance(batch.images, Tensor)
        sizes = [truth["size"] for truth in batch.truths]
        found = self.head.losses(self.backbone, batch.images, sizes, batch.truths, batch.keys)
        return Losses(found.terms, found.weights)

    def predict(self, images: Sequence[UInt8[Tensor, "3 _ _"]]) -> list[Detections]:
        shorter = max(self.config.sizes.shorter, default=None)
        weight = next(self.parameters())
        made: list[Detections] = []
        for first in range(0, len(images), _AT_ONCE):
            some = images[first : first + _AT_ONCE]
            originals = [(image.shape[1], image.shape[2]) for image in some]
            sizes = [fitted(size, self.canvas, shorter) for size in originals]
            pixels = [
                padded(normalise(_resized(image, size), self.mean, self.std), self.canvas)
                for image, size in zip(some, sizes, strict=True)
            ]
            found = self.head.detections(self.backbone, torch.stack(pixels).to(weight), sizes)
            made += [self._detections(*each) for each in zip(found, sizes, originals, strict=True)]
        return made

    @property
    def preprocessing(self) -> str:
        height, width = self.canvas
        shorter = max(self.config.sizes.shorter, default=None)
        limit = "" if shorter is None else f", with a shorter side of at most {shorter}"
        return f"as large as fits into {height}×{width} (bilinear, antialiased){limit}; the rest is padded inside"

    def named_outputs(self, pixels: Float[Tensor, "b 3 h w"]) -> dict[str, Tensor]:
        """Detections in pixels of the images, which may be smaller than the canvas."""
        height, width = (torch.ones_like(line).float().sum() for line in (pixels[0, 0, :, 0], pixels[0, 0, 0]))
        edges = torch.stack([width, height, width, height])
        return self.head.table(self.backbone, self._on_canvas(pixels), edges).named()

    def truth(self, sample: Sample) -> TrueObjects:
        assert isinstance(sample, SampleWithObjects)
        objects, size = sample.objects, (sample.image.shape[1], sample.image.shape[2])
        return TrueObjects(
            objects.boxes, objects.labels, objects.crowd, objects.areas, objects.masks, self.classes, size
        )

    def metric(self) -> Metric:
        if self.config.protocol == "uavdt":
            return UavdtPrecision()
        return AveragePrecision(self.head.has_masks)

    def drawing(self, image: UInt8[Tensor, "3 h w"], prediction: Detections | TrueObjects) -> UInt8[Tensor, "3 _ _"]:
        if isinstance(prediction, TrueObjects):
            names = [self.classes[label] for label in prediction.labels.tolist()]
            return drawn_objects(image, prediction.boxes, prediction.labels, names, prediction.masks)
        sure = int((prediction.scores >= SURE).sum())
        captions = [f"{name} {score:.0%}" for name, score, _ in prediction.top()]
        masks = None if prediction.masks is None else prediction.masks[:sure]
        return drawn_objects(image, prediction.boxes[:sure], prediction.labels[:sure], captions, masks)

    def writer(self, folder: Path) -> PredictionWriter:
        return CocoResults(folder, self.classes)

    def error(self, prediction: Detections, truth: TrueObjects) -> float:
        """One minus the F1 score of the sure detections."""
        pairs, wrong, missed = found_pairs(prediction, truth)
        total = 2 * len(pairs) + len(wrong) + len(missed)
        return 1 - 2 * len(pairs) / total if total else 0.0

    def report(self, pairs: Sequence[tuple[Detections, TrueObjects]]) -> list[Section]:
        return [class_section(self.classes, pairs)]

    def without_decay(self) -> set[str]:
        return super().without_decay() | ({"head.tokens"} if hasattr(self.head, "tokens") else set())

    def _on_canvas(self, pixels: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b 3 H W"]:
        """Zeros to the right and below; images that are larger than the canvas raise."""
        below = self.blank[pixels.shape[2] : self.canvas[0]].view(1, 1, -1, 1)
        right = self.blank[pixels.shape[3] : self.canvas[1]].view(1, 1, 1, -1)
        tall = torch.cat([pixels, below.expand(pixels.shape[0], 3, -1, pixels.shape[3])], dim=2)
        return torch.cat([tall, right.expand(pixels.shape[0], 3, tall.shape[2], -1)], dim=3).expand(-1, 3, *self.canvas)

    def _detections(self, found: Found, size: tuple[int, int], original: tuple[int, int]) -> Detections:
        """Detections in pixels of the original image."""
        scale = torch.tensor([original[1] / size[1], original[0] / size[0]]).repeat(2)
        boxes = found.boxes.float().cpu() * scale
        masks = None if found.masks is None else _pasted(found.masks.float().cpu(), boxes, original)
        return Detections(boxes, found.scores.float().cpu(), found.labels.cpu(), masks, self.classes, original)


def _check_classes(source: ObjectSource) -> None:
    names, counts = source.classes or [], source.class_counts()
    missing = [name for name, count in zip(names, counts, strict=True) if not count]
    if missing:
        raise UserError(
            f"{len(missing)} of the {len(names)} classes of {source.name} have no objects: {', '.join(missing[:3])}"
            f"{' …' if len(missing) > 3 else ''}; remove the classes, or keep them with task.empty_classes=keep"
        )


def _resized(image: UInt8[Tensor, "3 _ _"], size: tuple[int, int]) -> UInt8[Tensor, "3 _ _"]:
    if (image.shape[1], image.shape[2]) == size:
        return image
    return F.interpolate(image[None], size, mode="bilinear", antialias=True)[0]


def _pasted(
    masks: Float[Tensor, "n 1 m m"], boxes: Float[Tensor, "n 4"], size: tuple[int, int]
) -> tuple[RunLengths, ...]:
    """Masks of whole images, one at a time: all detections of a photograph together would fill the memory."""
    from torchvision.models.detection.roi_heads import paste_masks_in_image

    return tuple(
        encode(paste_masks_in_image(mask[None], box[None], size)[:, 0] >= 0.5)[0]
        for mask, box in zip(masks, boxes, strict=True)
    )
