"""The stages of Cascade R-CNN (Cai and Vasconcelos, 2018) on torchvision's region heads.

Every stage classifies its regions, moves their boxes, and passes them on. Regions are chosen once, for the first stage;
each later one labels the moved boxes again, at a higher overlap. Boxes are moved regardless of class. A region's class
logits and masks are averaged over the stages, as in MMDetection.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torchvision.models.detection.roi_heads import RoIHeads, fastrcnn_loss, maskrcnn_loss
from torchvision.ops import clip_boxes_to_image

from asterism.errors import UserError
from asterism.extras.detection.regions import KeyedSampler


class AgnosticPredictor(nn.Module):
    """Class logits, and one box for all classes, repeated for each as torchvision's losses expect."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.cls_score = nn.Linear(width, classes)
        self.bbox_pred = nn.Linear(width, 4)

    def forward(self, x: Float[Tensor, "n d"]) -> tuple[Float[Tensor, "n c"], Float[Tensor, "n 4*c"]]:
        return self.cls_score(x), self.bbox_pred(x).repeat(1, self.cls_score.out_features)


class CascadeRoIHeads(nn.Module):
    """Takes the place of torchvision's `RoIHeads`; names of losses end with `/` and the number of the stage."""

    def __init__(self, stages: Sequence[RoIHeads], weights: Sequence[float]) -> None:
        super().__init__()
        if len(stages) != len(weights):
            raise UserError(
                f"task.head.stage_weights has {len(weights)} numbers for the {len(stages)} stages of "
                "task.head.overlaps; give one for each"
            )
        self.stages: Any = nn.ModuleList(stages)
        self.weights = tuple(weights)
        self.objects = [0] * len(stages)  # regions with an object in the last batch, by stage

    @property
    def fg_bg_sampler(self) -> KeyedSampler:
        return self.stages[0].fg_bg_sampler

    def forward(
        self, maps: dict[str, Tensor], proposals: list[Tensor], sizes: list[tuple[int, int]], targets: Any = None
    ) -> tuple[list[dict[str, Tensor]], dict[str, Tensor]]:
        if self.training:
            return [], self._losses(maps, proposals, sizes, targets)
        return self._detections(maps, proposals, sizes), {}

    def _losses(
        self, maps: dict[str, Tensor], proposals: list[Tensor], sizes: list[tuple[int, int]], targets: Any
    ) -> dict[str, Tensor]:
        boxes, labels_of = [each["boxes"] for each in targets], [each["labels"] for each in targets]
        losses: dict[str, Tensor] = {}
        for number, stage in enumerate(self.stages):
            if number == 0:
                proposals, matched, labels, wanted = stage.select_training_samples(proposals, targets)
            else:
                matched, labels = stage.assign_targets_to_proposals(proposals, boxes, labels_of)
                wanted = stage.box_coder.encode(_matched(boxes, matched), proposals)
            logits, moves = self._looked(stage, maps, proposals, sizes)
            losses[f"loss_classifier/{number + 1}"], losses[f"loss_box_reg/{number + 1}"] = fastrcnn_loss(
                logits, moves, labels, wanted
            )
            objects = [each > 0 for each in labels]
            self.objects[number] = sum(int(each.sum()) for each in objects)
            regions = [each[here] for each, here in zip(proposals, objects, strict=True)]
            masks = self._masks(stage, maps, regions, sizes)
            places = [each[here] for each, here in zip(matched, objects, strict=True)]
            truth = [each["masks"] for each in targets]
            losses[f"loss_mask/{number + 1}"] = maskrcnn_loss(masks, regions, truth, labels_of, places)
            proposals = _moved(stage, moves, proposals, sizes)
        return losses

    def _detections(
        self, maps: dict[str, Tensor], proposals: list[Tensor], sizes: list[tuple[int, int]]
    ) -> list[dict[str, Tensor]]:
        total: Any = 0
        for stage in self.stages:
            last, before = stage, proposals
            logits, moves = self._looked(stage, maps, proposals, sizes)
            total = total + logits / len(self.stages)
            proposals = _moved(stage, moves, proposals, sizes)
        boxes, scores, labels = last.postprocess_detections(total, moves, before, sizes)
        masks = torch.stack([self._masks(stage, maps, boxes, sizes).sigmoid() for stage in self.stages]).mean(dim=0)
        own = masks[torch.arange(len(masks), device=masks.device), torch.cat(labels)][:, None]
        chosen = torch.split(own, [len(each) for each in labels])
        found = zip(boxes, scores, labels, chosen, strict=True)
        return [{"boxes": b, "scores": s, "labels": label, "masks": m} for b, s, label, m in found]

    def _looked(
        self, stage: RoIHeads, maps: dict[str, Tensor], proposals: list[Tensor], sizes: list[tuple[int, int]]
    ) -> tuple[Tensor, Tensor]:
        return stage.box_predictor(stage.box_head(stage.box_roi_pool(maps, proposals, sizes)))

    def _masks(
        self, stage: RoIHeads, maps: dict[str, Tensor], regions: list[Tensor], sizes: list[tuple[int, int]]
    ) -> Float[Tensor, "n c m m"]:
        return stage.mask_predictor(stage.mask_head(stage.mask_roi_pool(maps, regions, sizes)))


def _matched(boxes: list[Tensor], places: list[Tensor]) -> list[Tensor]:
    """The true box of each region; any box in images without objects, whose regions are all background."""
    return [
        each[place] if len(each) else each.new_zeros(len(place), 4) for each, place in zip(boxes, places, strict=True)
    ]


def _moved(stage: RoIHeads, moves: Tensor, proposals: list[Tensor], sizes: list[tuple[int, int]]) -> list[Tensor]:
    """The regions of the next stage, without gradient."""
    boxes = stage.box_coder.decode(moves.detach()[:, :4], proposals).reshape(-1, 4)
    parts = boxes.split([len(each) for each in proposals])
    return [clip_boxes_to_image(each, size) for each, size in zip(parts, sizes, strict=True)]
