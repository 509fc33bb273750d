"""YOLOS (Fang et al., 2021): detection tokens appended to the sequence of a plain ViT, matched to objects as in DETR.

    L = L_class + 5 · L1(box) + 2 · (1 - GIoU)

over the pairs of least total cost, in which -p(class) takes the place of the cross-entropy. Tokens without an object
learn the class "nothing" with a tenth of the weight. Boxes are centre, width and height as shares of the padded image,
as the network sees it.

Differs from the paper: positions are added before the first block only, not in every block.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.ops import MLP, box_convert, clip_boxes_to_image, generalized_box_iou

from asterism.errors import MissingExtra, UserError
from asterism.extras.detection.heads import (
    DetectHead,
    Found,
    HeadLosses,
    Size,
    Targets,
    YolosConfig,
    weighted_by_share,
)
from asterism.extras.detection.table import Extent, Table, top_rows
from asterism.nn.backbone import Backbone
from asterism.nn.stochastic_depth import branch_factors, run_block
from asterism.nn.vit import ViT


class Yolos(DetectHead):
    """Detection tokens with two small networks, for class and box."""

    has_masks = False

    def __init__(self, config: YolosConfig, backbone: Backbone, classes: int) -> None:
        super().__init__()
        if type(backbone) is not ViT:
            raise UserError(
                f"head = yolos adds tokens to the sequence of a plain ViT, and {backbone.architecture.name} is not "
                "one; choose faster-rcnn or mask-rcnn, or start from a plain ViT"
            )
        self.config = config
        self.classes = classes
        self.stride = backbone.patch_size
        dim = backbone.dim
        self.tokens = nn.Parameter(nn.init.trunc_normal_(torch.empty(1, config.tokens, dim), std=0.02))
        self.class_layers = MLP(dim, [dim, dim, classes + 1])
        self.box_layers = MLP(dim, [dim, dim, 4])
        for name in ("fc_norm", "attn_pool"):
            part = getattr(backbone.network, name, None)
            if isinstance(part, nn.Module):
                part.requires_grad_(False)

    def losses(
        self,
        backbone: Backbone,
        images: Float[Tensor, "b 3 h w"],
        sizes: Sequence[Size],
        targets: Targets,
        keys: Int[Tensor, " b"],
    ) -> HeadLosses:
        logits, boxes = self._predicted(backbone, images, keys)
        with torch.autocast(images.device.type, enabled=False):
            scale = self._scale(images)
            true_boxes = [box_convert(each["boxes"] / scale, "xyxy", "cxcywh") for each in targets]
            labels = [each["labels"] for each in targets]
            return matched_losses(logits, boxes, labels, true_boxes, self.config)

    def detections(self, backbone: Backbone, images: Float[Tensor, "b 3 h w"], sizes: Sequence[Size]) -> list[Found]:
        logits, boxes = self._predicted(backbone, images, None)
        scores, labels = logits.softmax(dim=2)[..., :-1].max(dim=2)
        edges = box_convert(boxes, "cxcywh", "xyxy") * self._scale(images)
        found = []
        for box, score, label, size in zip(edges, scores, labels, sizes, strict=True):
            order = score.argsort(descending=True, stable=True)[: self.config.detections]
            order = order[score[order] >= self.config.score_threshold]
            box = clip_boxes_to_image(box[order], size)
            inside = ((box[:, 2:] - box[:, :2]) > 0).all(dim=1)
            found.append(Found(box[inside], score[order][inside], label[order][inside], None))
        return found

    def table(self, backbone: Backbone, images: Float[Tensor, "b 3 h w"], edges: Float[Tensor, 4]) -> Table:
        logits, shares = self._predicted(backbone, images, None)
        scores, labels = logits.softmax(dim=2)[..., :-1].max(dim=2)
        canvas = (images.shape[2], images.shape[3])
        left, top, right, bottom = box_convert(shares, "cxcywh", "xyxy").unbind(dim=2)
        boxes = torch.stack([left * canvas[1], top * canvas[0], right * canvas[1], bottom * canvas[0]], dim=2)
        boxes = Extent(edges, canvas).clipped(boxes)
        inside = (boxes[..., 2:] > boxes[..., :2]).all(dim=2)
        shown = torch.where(inside & (scores >= self.config.score_threshold), scores, 0)
        return top_rows(boxes, shown, labels.float(), self.config.detections)

    def _predicted(
        self, backbone: Backbone, images: Float[Tensor, "b 3 h w"], keys: Int[Tensor, " b"] | None
    ) -> tuple[Float[Tensor, "b t c"], Float[Tensor, "b t 4"]]:
        """Class logits, the last of which is "nothing", and boxes as shares."""
        network: Any = backbone.network
        embedded = backbone.embedded(images)
        cls = [] if embedded.cls is None else [embedded.cls[:, None]]
        tokens = self.tokens.expand(images.shape[0], -1, -1)
        x = torch.cat([*cls, embedded.registers, embedded.patches, tokens.to(embedded.patches.dtype)], dim=1)
        factors = branch_factors(keys, backbone.depth, backbone.drop_path, x.device)
        for block, factor in zip(network.blocks, factors, strict=True):
            x = run_block(block, x, factor, backbone.checkpointing)
        own = network.norm(x[:, -self.config.tokens :])
        return self.class_layers(own).float(), self.box_layers(own).float().sigmoid()

    def _scale(self, images: Tensor) -> Float[Tensor, " edges"]:
        height, width = images.shape[-2:]
        return torch.tensor([width, height, width, height], dtype=torch.float32, device=images.device)


def matched_losses(
    logits: Float[Tensor, "b t c"],
    boxes: Float[Tensor, "b t 4"],
    labels: Sequence[Int[Tensor, " _"]],
    true_boxes: Sequence[Float[Tensor, "_ 4"]],
    config: YolosConfig,
) -> HeadLosses:
    """Losses over the pairs of least cost; boxes are centre, width and height as shares."""
    nothing = logits.shape[2] - 1
    wanted = torch.full(logits.shape[:2], nothing, dtype=torch.int64, device=logits.device)
    own, true = [], []
    for image, (label, box) in enumerate(zip(labels, true_boxes, strict=True)):
        if not len(label):
            continue
        rows, columns = least_cost_pairs(matching_cost(logits[image], boxes[image], label, box, config))
        wanted[image, rows] = label[columns]
        own.append(boxes[image, rows])
        true.append(box[columns])
    weights = logits.new_ones(nothing + 1)
    weights[nothing] = config.nothing_weight
    classes = F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), weights)
    objects = sum(len(each) for each in own)
    if objects:
        mine, theirs = torch.cat(own), torch.cat(true)
        distance = F.l1_loss(mine, theirs, reduction="sum") / objects
        overlap = generalized_box_iou(box_convert(mine, "cxcywh", "xyxy"), box_convert(theirs, "cxcywh", "xyxy"))
        giou = (1 - overlap.diagonal()).sum() / objects
    else:
        distance = giou = boxes.sum() * 0
    counts = {"class": float(weights[wanted].sum()), "box": objects, "giou": objects}
    terms = weighted_by_share({"class": classes, "box": distance, "giou": giou}, counts)
    return HeadLosses(terms, {"box": config.box_weight, "giou": config.giou_weight})


@torch.no_grad()
def matching_cost(
    logits: Float[Tensor, "t c"],
    boxes: Float[Tensor, "t 4"],
    labels: Int[Tensor, " m"],
    true_boxes: Float[Tensor, "m 4"],
    config: YolosConfig,
) -> Float[Tensor, "t m"]:
    """The cost of giving each object to each token."""
    probability = logits.softmax(dim=1)[:, labels]
    distance = torch.cdist(boxes, true_boxes, p=1)
    overlap = generalized_box_iou(box_convert(boxes, "cxcywh", "xyxy"), box_convert(true_boxes, "cxcywh", "xyxy"))
    return config.box_weight * distance - probability - config.giou_weight * overlap


def least_cost_pairs(cost: Float[Tensor, "detections objects"]) -> tuple[Int[Tensor, " k"], Int[Tensor, " k"]]:
    """Rows and columns of the pairs with the least total cost, by the Hungarian algorithm; k = min of both."""
    try:
        optimize = importlib.import_module("scipy.optimize")
    except ModuleNotFoundError:
        raise MissingExtra("scipy", "detect") from None
    finite = torch.nan_to_num(cost.detach().double().cpu(), nan=1e9, posinf=1e9, neginf=-1e9)
    rows, columns = optimize.linear_sum_assignment(finite.numpy())
    return torch.as_tensor(rows, device=cost.device), torch.as_tensor(columns, device=cost.device)
