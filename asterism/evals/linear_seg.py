"""Segmentation by a linear map of frozen patch tokens: whether the class of a patch is linearly decodable.

Two forms. `form=upsampled` (CrIBo): a 1×1 convolution on the last tokens, or on the last four layers concatenated; its
scores are upsampled bilinearly and compared with every pixel. `form=patches` (STELLAR): batch norm and a 1×1
convolution, compared with the majority label of each patch. Adam, learning rate with polynomial decay (power 0.9). All
learning rates are trained at once and one is chosen on a tenth of the training images, which no head is trained on.
Test images are scored at their original size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn
from torch.nn import functional as F

from asterism.data.parts import SegmentedParts, drawn_images, open_segmented_parts
from asterism.data.sources.segmented import Square
from asterism.errors import UserError
from asterism.evals.base import Evaluation, ProtocolConfig
from asterism.evals.baselines import patch_baselines
from asterism.evals.probes import GridConfig, best, linear_layer, train_heads
from asterism.features.dense_tokens import mask_of, pixels_from_patches, sizes_of, tokens_and_masks
from asterism.features.extract import count_unreadable
from asterism.features.rows import Stored
from asterism.images.masks import VOID
from asterism.nn.encoder import Encoder
from asterism.ops import streams
from asterism.ops.random import fold
from asterism.ops.segmentation_metrics import SegmentationScores, confusion, iou_by_class, scores
from asterism.ranges import Count, Few, Positive, Several
from asterism.viz.bar import Bar

_POWER = 0.9  # of the polynomial decay


class LinearSegConfig(GridConfig):
    """Constants of the protocol; the learning rates are those of the paper."""

    form: Literal["upsampled", "patches"] = "upsampled"
    layers: Few = 1  # last blocks whose tokens are concatenated; the papers use 1 or 4
    learning_rates: Several[Positive] = (8e-4, 3e-4, 1e-4, 8e-5)
    epochs: Count = 20
    head_batch: Count = 16  # images per step of the heads
    side: Positive = 2.0  # of the square that images are resized to, relative to the encoder's image size
    batch_size: Count = 8  # images encoded at a time; does not change the result


class LinearSeg(Evaluation):
    """Mean intersection over union, mean class accuracy and pixel accuracy, in percent; and the intersection over union
    of every class in the test images."""

    Config = LinearSegConfig
    config: LinearSegConfig
    parts: SegmentedParts
    opened = staticmethod(open_segmented_parts)

    @classmethod
    def value_names(cls, config: ProtocolConfig) -> list[str]:
        return ["miou", "macc", "aacc", "chosen_learning_rate", "unreadable_images"]

    def measure(self, encoder: Encoder) -> Iterator[tuple[str, float]]:
        config, classes = self.config, len(self.parts.classes)
        train, test = (self._tokens(encoder, part) for part in (self.parts.train, self.parts.test))
        images = len(train.keys)
        if images < 2:
            raise UserError(
                f"{self.parts.train.name} has {images} readable training image; linear-seg needs two, one to train on "
                "and one to choose the learning rate on"
            )
        held_out = drawn_images(images, max(1, round(config.chosen_on * images)), fold(config.seed, images))
        trained_on = torch.tensor(sorted(set(range(images)) - set(held_out)))
        if all(bool((mask_of(train, int(image)) == VOID).all()) for image in trained_on):
            raise UserError(f"every pixel of {self.parts.train.name} is void; there is nothing to learn from")
        device = next(encoder.parameters()).device
        heads = self._trained(train, trained_on, classes, self._side(encoder), device)
        chosen = best(_scores(head, train, held_out, classes, device).miou for head in heads)
        found = _scores(heads[chosen], test, range(len(test.keys)), classes, device)
        if found.miou != found.miou:
            raise UserError(f"every pixel of {self.parts.test.name} is void; there is nothing to test on")
        yield "miou", 100 * found.miou
        yield "macc", 100 * found.macc
        yield "aacc", 100 * found.aacc
        yield from ((f"iou/{name}", value) for name, value in iou_by_class(found, self.parts.classes).items())
        yield "chosen_learning_rate", config.learning_rates[chosen]
        yield from count_unreadable(train, test)

    def baselines(self, encoder: Encoder) -> dict[str, Encoder]:
        return patch_baselines(encoder)

    def constants(self, encoder: Encoder) -> dict[str, Any]:
        sizes = {"side": self._side(encoder), "classes": len(self.parts.classes)}
        return super().constants(encoder) | sizes | {"optimizer": "adam", "decay": f"polynomial, power {_POWER}"}

    def _side(self, encoder: Encoder) -> int:
        multiple = encoder.patch_size
        return max(1, round(self.config.side * encoder.image_size / multiple)) * multiple

    def _tokens(self, encoder: Encoder, source: Any) -> Stored:
        return tokens_and_masks(
            encoder,
            source,
            Square(self._side(encoder)),
            layers=self.config.layers,
            batch_size=self.config.batch_size,
            workers=self.config.workers,
        )

    def _trained(
        self, train: Stored, trained_on: Int[Tensor, " n"], classes: int, side: int, device: torch.device
    ) -> list[nn.Module]:
        config, dim = self.config, train.arrays["tokens"].shape[1]
        grid = sizes_of(train, 0)[0]
        heads = [self._head(dim, classes).to(device) for _ in config.learning_rates]
        groups = [
            {"params": list(head.parameters()), "lr": lr} for head, lr in zip(heads, config.learning_rates, strict=True)
        ]

        def load(places: Int[Tensor, " b"]) -> _Batch:
            images = trained_on[places].tolist()
            vectors = torch.stack([train.of("tokens", image) for image in images]).float()
            if config.form == "patches":
                labels = torch.stack([train.of("labels", image) for image in images]).view(-1, *grid)
            else:
                labels = torch.stack([_resized(mask_of(train, image), (side, side)) for image in images])
            return _Batch(vectors.to(device), labels.long().to(device), grid)

        train_heads(
            heads,
            torch.optim.Adam(groups),
            lambda step, steps: (1 - step / steps) ** _POWER,
            load,
            _loss,
            images=len(trained_on),
            batch_size=min(config.head_batch, len(trained_on)),
            epochs=config.epochs,
            key=fold(config.seed, streams.SegmentationProbe.ORDER),
            title="linear-seg",
        )
        return [head.eval() for head in heads]

    def _head(self, dim: int, classes: int) -> nn.Module:
        """A linear map of tokens [m, d], equivalent to a 1×1 convolution."""
        layer = linear_layer(dim, classes, fold(self.config.seed, streams.SegmentationProbe.WEIGHTS))
        return nn.Sequential(nn.BatchNorm1d(dim), layer) if self.config.form == "patches" else layer


@dataclass(frozen=True)
class _Batch:
    tokens: Float[Tensor, "b n d"]
    labels: Int[Tensor, "b h w"]  # of pixels or of patches
    grid: tuple[int, int]


def _loss(head: nn.Module, batch: _Batch) -> Float[Tensor, ""]:
    """Mean cross-entropy over pixels or patches that are not void; 0 if all are void."""
    images, patches, _ = batch.tokens.shape
    values = head(batch.tokens.flatten(0, 1)).view(images, patches, -1).mT.reshape(images, -1, *batch.grid)
    if values.shape[2:] != batch.labels.shape[1:]:
        values = F.interpolate(values, batch.labels.shape[1:], mode="bilinear", align_corners=False)
    total = F.cross_entropy(values, batch.labels, ignore_index=VOID, reduction="sum")
    return total / (batch.labels != VOID).sum().clamp(min=1)


@torch.no_grad()
def _scores(
    head: nn.Module, images: Stored, chosen: Sequence[int], classes: int, device: torch.device
) -> SegmentationScores:
    counts = torch.zeros(classes, classes, dtype=torch.int64)
    with Bar("linear-seg", len(chosen)) as bar:
        for image in chosen:
            values = head(images.of("tokens", image).float().to(device)).cpu()
            predicted = pixels_from_patches(values, *sizes_of(images, image))
            counts += confusion(predicted, mask_of(images, image), classes, VOID)
            bar.advance(1)
    return scores(counts)


def _resized(mask: UInt8[Tensor, "h w"], size: tuple[int, int]) -> UInt8[Tensor, "i j"]:
    return mask if mask.shape == size else F.interpolate(mask[None, None], size, mode="nearest-exact")[0, 0]
