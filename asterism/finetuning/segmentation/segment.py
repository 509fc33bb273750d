"""Segmentation: a class for every pixel. Linear heads on a frozen network, or fine-tuning with a decoder.

Heads, in `asterism.finetuning.segmentation.heads`:

    linear            one linear layer on the last tokens of the frozen network (CrIBo, STELLAR)
    linear4           one linear layer on the tokens of four blocks of the frozen network (iBOT)
    upernet           UPerNet on a pyramid of tokens (SOP, iBOT)
    fpn               Semantic FPN on a pyramid of tokens (FLSL)
    mask-transformer  Segmenter: class tokens and patches in a small transformer (CrIBo)

Training images are scaled, cropped and flipped at random (`samples`); predictions use sliding windows (`windows`).
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float, Int, UInt8
from pydantic import SerializeAsAny, field_validator
from torch import Tensor, nn
from torch.nn import functional as F

from asterism.data import Sample, Source
from asterism.data.loader import Make
from asterism.data.sources.segmented_layouts import open_segmented
from asterism.data.sources.splits import UnknownSplit
from asterism.errors import UserError
from asterism.features.mask_tracking import usual_short_side
from asterism.finetuning.segmentation.heads import HEADS
from asterism.finetuning.segmentation.heads.base import SegmentHeadConfig
from asterism.finetuning.segmentation.heads.linear import LinearConfig
from asterism.finetuning.segmentation.labelled import numbered_like, open_checked, pixel_classes
from asterism.finetuning.segmentation.maps import Labels, Segmentation, first_colour
from asterism.finetuning.segmentation.output import MaskFolder
from asterism.finetuning.segmentation.report import PixelCounts, class_sections, pixel_counts
from asterism.finetuning.segmentation.samples import SegmentAugmentationConfig, SegmentSamples, resize, resized
from asterism.finetuning.segmentation.windows import Prepared, cuts, label_maps
from asterism.finetuning.task import Metric, PredictionWriter, Start, Task, TaskBatch, TaskConfig, chosen_head
from asterism.images.bad_image import BadImage
from asterism.images.masks import VOID
from asterism.ops import collectives
from asterism.ops.patch_labels import class_counts, majority_labels
from asterism.ops.propagation import class_shares, resize_labels
from asterism.ops.segmentation_metrics import confusion, iou_by_class, scores
from asterism.ranges import Pixels, PositiveShare
from asterism.types import Losses, Progress
from asterism.viz.mask_overlay import overlay
from asterism.viz.page import Section

_LARGE = 1024  # channels of ViT-L
_BALANCES = (0.0, 0.25, 0.5, 0.75, 1.0)  # of a probe: 1 treats all classes as equally frequent
_FEW_IMAGES = 9  # whose size is looked at
_LEAST_SHARE = 1e-4  # of a class, so that one that is almost never seen is not found everywhere
_UNUSED = ("fc_norm", "attn_pool", "head", "head_drop")  # parts of timm's networks that belong to classifiers


class SegmentConfig(TaskConfig):
    """Settings of the task; the defaults of the optimiser are those of iBOT's segmentation."""

    recipe_defaults: ClassVar[Mapping[str, Any]] = MappingProxyType(
        {
            "optim": {
                "lr": 7e-4,
                "lr_scaling": "none",
                "schedule": "poly",
                "power": 1.0,
                "min_lr": 0.0,
                "warmup_epochs": 1.0,
            },
            "average": None,
        }
    )

    name: Literal["segment"] = "segment"
    head: SerializeAsAny[SegmentHeadConfig] = LinearConfig()
    frozen: bool | Literal["auto"] = "auto"  # the network; auto: with a linear head
    side: Pixels | None = None  # shorter side that images are resized to; None: source.image_size, the side of a crop
    augmentation: SegmentAugmentationConfig = SegmentAugmentationConfig()
    loss_on: Literal["pixels", "patches"] = "pixels"  # patches: their most frequent class
    inference: Literal["windows", "whole"] = "windows"  # windows of the size of a training crop, or the whole image
    stride: PositiveShare = 2 / 3  # from a window to the next, as a share of its side
    start: Literal["probe", "fresh"] = "probe"  # of a linear head: a probe of the frozen network, or random weights

    @field_validator("head", mode="before")
    @classmethod
    def _choose_head(cls, value: Any) -> Any:
        return chosen_head(value, HEADS)

    @property
    def freezes(self) -> bool:
        return self.head.freezes if self.frozen == "auto" else self.frozen

    @property
    def usual_batch(self) -> int:
        """As published."""
        return 16

    def check_micro_batch(self, images: int) -> None:
        if images < self.head.least_images:
            raise UserError(
                f"each process gets {images} image at a time, but the batch norm of head={self.head.name} needs "
                f"{self.head.least_images}; choose a larger trainer.batch_size or fewer devices"
            )

    def usual_layer_decay(self, dim: int) -> float:
        """As in iBOT: 0.65, and 0.75 for ViT-L."""
        return 1.0 if self.freezes else 0.75 if dim >= _LARGE else 0.65


class Segment(Task):
    """A network with a head that gives every pixel a class."""

    Config = SegmentConfig
    primary = "miou"
    purpose = "image-segmentation"
    meanings = MappingProxyType(
        {
            "logits": "logits of the classes on the grid of the head [batch, classes, rows, columns]",
            "labels": "the class of every pixel, counted from 0 [batch, height, width]",
        }
    )
    config: SegmentConfig

    def __init__(self, config: SegmentConfig, start: Start) -> None:
        super().__init__(config, start)
        self.head = config.head.build(start.backbone, len(start.classes))
        self.backbone.requires_grad_(not config.freezes)
        for parameter in self._unused():
            parameter.requires_grad_(False)

    @classmethod
    def open(cls, config: SegmentConfig, path: str, split: str | None) -> Source:
        return open_checked(path, split)

    @classmethod
    def open_test(cls, config: SegmentConfig, path: str, split: str | None) -> Source:
        """Unlike training images, those to test on may lack some classes."""
        try:
            return open_segmented(path, split or "test")
        except UnknownSplit:
            if split is not None:
                raise
        return open_segmented(path)

    @classmethod
    def usual_image_size(cls, native: int, images: Callable[[], Source]) -> int:
        """The shorter side of the images, as far as `asterism segment` goes: about twice the size of the network."""
        sides = _shorter_sides(images())
        return min(usual_short_side(native), int(statistics.median(sides))) if sides else native

    @classmethod
    def class_names(cls, config: SegmentConfig, source: Source) -> tuple[str, ...]:
        return tuple(pixel_classes(source))

    def labelled_like_training(self, source: Source) -> Source:
        return numbered_like(source, self.classes)

    def train(self, mode: bool = True) -> Segment:
        """A frozen network stays in evaluation mode."""
        super().train(mode)
        if self.config.freezes:
            self.backbone.eval()
        return self

    def samples(self) -> Make[TaskBatch]:
        return SegmentSamples(self.config.augmentation, self.image_size, self._side, self.mean, self.std)

    def loss(self, batch: TaskBatch, progress: Progress) -> Losses:
        """Cross-entropy, averaged over all pixels of the crops; void ones count as zero.

        So is mmsegmentation's, and it is a mean over images: processes can average it again.
        """
        assert isinstance(batch.images, Tensor)
        (masks,) = batch.truths
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.config.freezes):
            drop_keys = None if self.config.freezes else batch.keys
            tokens = self.head.read(self.backbone, batch.images, drop_keys)
        names = ("cross_entropy", "auxiliary_cross_entropy")
        labels = self._labels(masks)
        terms = {
            name: _cross_entropy(logits, labels)
            for name, logits in zip(names, self.head(tokens, batch.keys), strict=False)
        }
        return Losses(terms, dict(zip(names, self.head.weights, strict=False)))

    @torch.no_grad()
    def predict(self, images: Sequence[UInt8[Tensor, "3 _ _"]]) -> list[Segmentation]:
        window = None if self.config.inference == "whole" else self.image_size
        stride = max(1, round(self.config.stride * self.image_size))
        maps = label_maps(map(self._prepared, images), self._logits, window, stride)
        return [Segmentation(mask, self.classes) for mask in maps]

    @property
    def preprocessing(self) -> str:
        resized_to = f"shorter side to {self._side} (bilinear, antialiased)"
        if self.config.inference == "whole":
            return f"{resized_to}, both sides rounded to multiples of {self.backbone.patch_size}"
        return f"{resized_to}, then squares of {self.image_size} that overlap, whose logits are averaged"

    def named_outputs(self, pixels: Float[Tensor, "b 3 h w"]) -> dict[str, Tensor]:
        """Logits on the grid of the head, and the class of every pixel. The whole image is looked at once."""
        logits = self._logits(pixels).float()
        fine = F.interpolate(logits, (pixels.shape[2], pixels.shape[3]), mode="bilinear", align_corners=False)
        return {"logits": logits, "labels": fine.argmax(dim=1)}

    def truth(self, sample: Sample) -> Labels:
        if sample.semantic is None:
            raise UserError(f"{sample.key} has no mask; segmentation needs one per image")
        return Labels(sample.semantic.to(torch.uint8), self.classes)

    def metric(self) -> Metric:
        return SegmentationMetric(self.classes, each_class=True)

    def choosing_metric(self) -> Metric:
        return SegmentationMetric(self.classes, each_class=False)

    def drawing(self, image: UInt8[Tensor, "3 h w"], prediction: Segmentation | Labels) -> UInt8[Tensor, "3 _ _"]:
        mask = prediction.mask.long()
        return overlay(image.cpu(), torch.where(mask == VOID, 0, mask + first_colour(self.classes)))

    def writer(self, folder: Path) -> PredictionWriter:
        return MaskFolder(folder, self.classes)

    def error(self, prediction: Segmentation, truth: Labels) -> float:
        """One minus the mean intersection over union of the classes in the image or in the prediction."""
        counts = confusion(prediction.mask, truth.mask, len(self.classes), VOID)
        return 1 - scores(counts).miou if counts.any() else 0.0

    def probed_layer(self) -> nn.Conv2d | None:
        return self.head.probed_layer() if self.config.start == "probe" else None

    def probe_rows(self, samples: Sequence[Sample]) -> Iterator[tuple[Float[Tensor, "n d"], Float[Tensor, "n c"]]]:
        """The patches of the windows of each image that are at least half labelled."""
        window = None if self.config.inference == "whole" else self.image_size
        for sample in samples:
            image = self._prepared(sample.image)
            labels = resize_labels(self.truth(sample).mask, image.inner)
            below, right = (whole - part for whole, part in zip(image.pixels.shape[1:], image.inner, strict=True))
            labels = F.pad(labels, (0, right, 0, below), value=VOID)
            features, shares = [], []
            for rows, columns in cuts(image, window, max(1, round(self.config.stride * self.image_size))):
                tokens = self.head.read(self.backbone, image.pixels[None, :, rows, columns], None)
                cell = class_shares(labels[rows, columns], len(self.classes), tokens[0].grid).flatten(1).T
                features.append(self.head.inputs(tokens)[0])
                shares.append(cell.to(features[-1].device))
            found = torch.cat(shares)
            labelled = found.sum(dim=1)
            kept = labelled >= 0.5
            yield torch.cat(features)[kept], (found / labelled[:, None].clamp_min(0.5))[kept]

    def chosen_probe(
        self, logits: Float[Tensor, "r m c"], targets: Float[Tensor, "m c"]
    ) -> tuple[int, Float[Tensor, " c"]]:
        """By the mean intersection over union of patches. Classes that are rare are favoured as far as it rises."""
        shares = (
            -targets.mean(dim=0).clamp_min(_LEAST_SHARE).log() if len(targets) else targets.new_zeros(targets.shape[1])
        )
        known = targets.argmax(dim=1).to(torch.uint8)
        scored = [
            (scores(confusion((each + balance * shares).argmax(dim=1), known, len(shares), VOID)).miou, place, balance)
            for place, each in enumerate(logits)
            for balance in _BALANCES
            if len(targets)
        ]
        _, place, balance = max(scored, key=lambda found: found[0], default=(0.0, 0, 0.0))
        return place, balance * shares

    def remembered(self, prediction: Segmentation, truth: Labels) -> PixelCounts:
        return pixel_counts(prediction.mask, truth.mask, len(self.classes))

    def report(self, images: Sequence[PixelCounts]) -> list[Section]:
        return class_sections(self.classes, images)

    def without_decay(self) -> set[str]:
        return super().without_decay() | {"head.class_tokens"}

    @property
    def _side(self) -> int:
        return self.config.side or self.image_size

    def _logits(self, pixels: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b c _ _"]:
        return self.head(self.head.read(self.backbone, pixels, None), None)[0]

    def _prepared(self, image: UInt8[Tensor, "3 h w"]) -> Prepared:
        """The image at the size of the task; a margin of the mean colour makes it as large as a window."""
        original = (image.shape[1], image.shape[2])
        size = resized(*original, self._side)
        if self.config.inference == "whole":
            patch = self.backbone.patch_size
            size = (max(1, round(size[0] / patch)) * patch, max(1, round(size[1] / patch)) * patch)
            return Prepared(self.normalise(resize(image, size)[None])[0], size, original)
        pixels = self.normalise(resize(image, size)[None])[0]
        below, right = (max(0, self.image_size - side) for side in size)
        return Prepared(F.pad(pixels, (0, right, 0, below)), size, original)

    def _labels(self, masks: UInt8[Tensor, "b h w"]) -> Int[Tensor, "b _ _"]:
        """The labels at the resolution of the loss."""
        if self.config.loss_on == "pixels":
            return masks.long()
        side = self.backbone.patch_size
        return majority_labels(class_counts(masks, (side, side), len(self.classes), VOID), VOID)

    def _unused(self) -> Iterator[nn.Parameter]:
        """Parameters of the network that the head's tokens do not depend on; data parallelism refuses to train them."""
        for part in _UNUSED if self.head.normed else (*_UNUSED, "norm"):
            found = getattr(self.backbone.network, part, None)
            if isinstance(found, nn.Module):
                yield from found.parameters()
        mask_token = getattr(self.backbone, "mask_token", None)
        if mask_token is not None:
            yield mask_token
        if self.head.read_blocks and self.backbone.first_block == 0:
            blocks: Any = self.backbone.network.blocks
            yield from blocks[max(self.head.read_blocks) + 1 :].parameters()


def _shorter_sides(source: Source) -> list[int]:
    """Of a few readable images."""
    found = []
    for place in range(0, len(source), -(-len(source) // _FEW_IMAGES)):
        with contextlib.suppress(BadImage):
            found.append(min(source[place].image.shape[1:]))
    return found


def _cross_entropy(logits: Float[Tensor, "b c _ _"], labels: Int[Tensor, "b h w"]) -> Float[Tensor, ""]:
    """Of the logits upsampled to the resolution of the labels."""
    size = (labels.shape[1], labels.shape[2])
    logits = logits.float()
    if tuple(logits.shape[2:]) != size:
        logits = F.interpolate(logits, size, mode="bilinear", align_corners=False)
    return F.cross_entropy(logits, labels, ignore_index=VOID, reduction="sum") / labels.numel()


class SegmentationMetric:
    """One table of counts, classes × classes, whatever the number of images. Values are in percent."""

    def __init__(self, classes: Sequence[str], *, each_class: bool) -> None:
        """each_class: also give the intersection over union of every class."""
        self._classes, self._each_class = tuple(classes), each_class
        self._counts: Int[Tensor, "c c"] = torch.zeros(len(classes), len(classes), dtype=torch.int64)

    def update(self, predictions: Sequence[Segmentation], truths: Sequence[Labels]) -> None:
        for prediction, truth in zip(predictions, truths, strict=True):
            self._counts += confusion(prediction.mask, truth.mask, len(self._classes), VOID)

    def gathered(self) -> dict[str, float]:
        counts = collectives.all_reduce_sum(self._counts)
        if not counts.any():
            raise UserError("every pixel of these images is void; there is nothing to measure")
        found = scores(counts)
        values = {"miou": 100 * found.miou, "macc": 100 * found.macc, "aacc": 100 * found.aacc}
        if self._each_class:
            values |= {f"iou/{name}": value for name, value in iou_by_class(found, self._classes).items()}
        return values
