"""R-CNNs: losses and detections of torchvision's own models, gradients, keyed choices, cascade stages."""

from typing import Any

import pytest
import torch
from torch import nn
from torchvision.models.detection import FasterRCNN, MaskRCNN
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.models.detection.roi_heads import fastrcnn_loss
from torchvision.ops import box_iou

from asterism.errors import UserError
from asterism.extras.detection.detect import Detect
from asterism.extras.detection.regions import Anchors, KeyedSampler
from asterism.types import Progress
from tests.extras.detection.drawn import HEADS, SMALL, batch_for, detector
from tests.finetuning.tiny import BACKBONE, SWIN

PROGRESS = Progress(0, 10, 5)


class _NoBackbone(nn.Module):
    out_channels = SMALL["channels"]


def theirs(task: Detect, masks: bool) -> Any:
    """The model of torchvision with the same weights, apart from the backbone."""
    anchors = task.head.rpn.anchor_generator
    options: dict[str, Any] = {
        "rpn_anchor_generator": AnchorGenerator(anchors.sizes, anchors.aspect_ratios),
        "rpn_pre_nms_top_n_train": 24,
        "rpn_post_nms_top_n_train": 24,
        "rpn_pre_nms_top_n_test": 24,
        "rpn_post_nms_top_n_test": 24,
        "rpn_batch_size_per_image": 10_000,  # so many that all are chosen, and nothing is drawn
        "box_batch_size_per_image": 10_000,
        "box_head": TwoMLPHead(SMALL["channels"] * 49, SMALL["hidden"]),
        "box_predictor": FastRCNNPredictor(SMALL["hidden"], 4),
        "box_score_thresh": 0.0,
        "box_detections_per_img": 10,
    }
    if masks:
        options |= {"mask_head": MaskRCNNHeads(8, (8,), 1), "mask_predictor": MaskRCNNPredictor(8, 8, 4)}
    model: Any = (MaskRCNN if masks else FasterRCNN)(_NoBackbone(), **options)
    model.rpn.load_state_dict(task.head.rpn.state_dict())
    model.roi_heads.load_state_dict(task.head.roi_heads.state_dict())
    return model


@pytest.mark.parametrize("head", ["faster-rcnn", "mask-rcnn"])
def test_losses_are_those_of_torchvision(head: str) -> None:
    task = detector(head, rpn_regions=10_000, regions=10_000)
    model = theirs(task, "mask" in head).train()
    batch = batch_for(task)
    sizes = [truth["size"] for truth in batch.truths]
    maps = task.head.features(task.backbone, batch.images, None)
    targets = [{**truth, "labels": truth["labels"] + 1} for truth in batch.truths]
    ours = task.head.losses_of_maps(maps, batch.images, sizes, targets, batch.keys)
    proposals, first = model.rpn(ImageList(batch.images, sizes), maps, targets)
    _, second = model.roi_heads(maps, proposals, sizes, targets)
    names = {"objectness": "loss_objectness", "proposal_box": "loss_rpn_box_reg"}
    names |= {"class": "loss_classifier", "box": "loss_box_reg", "mask": "loss_mask"}
    expected = {**first, **second}
    assert len(ours.terms) == len(expected) == (5 if "mask" in head else 4)
    for name, value in ours.terms.items():
        torch.testing.assert_close(value, expected[names[name]])


def test_detections_are_those_of_torchvision() -> None:
    task = detector("mask-rcnn").eval()
    model = theirs(task, masks=True).eval()
    batch = batch_for(task)
    sizes = [truth["size"] for truth in batch.truths]
    with torch.no_grad():
        ours = task.head.detections(task.backbone, batch.images, sizes)
        maps = task.head.features(task.backbone, batch.images, None)
        proposals, _ = model.rpn(ImageList(batch.images, sizes), maps)
        expected, _ = model.roi_heads(maps, proposals, sizes)
    for found, other in zip(ours, expected, strict=True):
        assert len(found.scores) == 10
        torch.testing.assert_close(found.boxes, other["boxes"])
        torch.testing.assert_close(found.scores, other["scores"])
        torch.testing.assert_close(found.masks, other["masks"])
        assert torch.equal(found.labels + 1, other["labels"])


@pytest.mark.parametrize("config", [BACKBONE, SWIN], ids=["vit", "swin"])
@pytest.mark.parametrize("head", HEADS)
def test_gradients_reach_every_trained_parameter(head: str, config: Any) -> None:
    if config is SWIN and head == "yolos":
        with pytest.raises(UserError, match="head = yolos adds tokens to the sequence of a plain ViT"):
            detector(head, config, 64)
        return
    task = detector(head, config, 64 if config is SWIN else 32)
    torch.autograd.backward(task.loss(batch_for(task), PROGRESS).total)
    trained = [(name, p) for name, p in task.named_parameters() if p.requires_grad]
    assert not [name for name, p in trained if p.grad is None or not p.grad.any()]
    assert len(trained) > 40
    assert all(p.grad is None for p in task.parameters() if not p.requires_grad)


def test_chosen_regions_are_a_function_of_the_key() -> None:
    labels = [torch.tensor([1, 0, -1, 0, 2, 0, 1, 0, 0, 1]), torch.tensor([0, 0, 0, 1])]
    sampler = KeyedSampler(4, 0.5, use=1)
    sampler.keys = torch.tensor([5, 6])
    positive, negative = sampler(labels)
    assert [int(each.sum()) for each in positive] == [2, 1]
    assert [int(each.sum()) for each in negative] == [2, 3]
    assert (sampler.sampled, sampler.objects) == (8, 3)
    assert all((label[chosen.bool()] >= 1).all() for label, chosen in zip(labels, positive, strict=True))
    assert all((label[chosen.bool()] == 0).all() for label, chosen in zip(labels, negative, strict=True))
    sampler.keys = torch.tensor([6])
    assert torch.equal(sampler(labels[1:])[1][0], negative[1])
    draws = set()
    for key in range(20):
        sampler.keys = torch.tensor([key])
        draws.add(tuple(sampler(labels[:1])[0][0].tolist()))
    assert len(draws) > 3  # all six pairs of positives occur sooner or later


def test_cascade_stages_have_rising_overlaps_and_sharper_boxes() -> None:
    stages = detector("cascade-mask-rcnn").head.roi_heads.stages
    assert [stage.proposal_matcher.high_threshold for stage in stages] == [0.5, 0.6, 0.7]
    assert [stage.proposal_matcher.low_threshold for stage in stages] == [0.5, 0.6, 0.7]
    assert [stage.box_coder.weights[0] for stage in stages] == [10, 20, 30]


def test_a_cascade_labels_moved_boxes_again_at_its_own_overlap() -> None:
    """The losses of each stage against a slow loop over its regions."""
    task = detector("cascade-mask-rcnn")
    heads, batch = task.head.roi_heads, batch_for(task)
    sizes = [truth["size"] for truth in batch.truths]
    maps = task.head.features(task.backbone, batch.images, None)
    targets = [{**truth, "labels": truth["labels"] + 1} for truth in batch.truths]
    losses = task.head.losses_of_maps(maps, batch.images, sizes, targets, batch.keys)
    assert losses.weights == {
        f"{n}_{s}": w for n in ("class", "box", "mask") for s, w in ((1, 1.0), (2, 0.5), (3, 0.25))
    }

    proposals, _ = task.head.rpn(ImageList(batch.images, sizes), maps, targets)
    regions, _, _, _ = heads.stages[0].select_training_samples(proposals, targets)
    for number, (stage, overlap) in enumerate(zip(heads.stages, (0.5, 0.6, 0.7), strict=True), start=1):
        labels, wanted = [], []
        for boxes, target in zip(regions, targets, strict=True):
            chosen, moves = [], []
            for box in boxes:
                found = box_iou(box[None], target["boxes"])[0]
                best = int(found.argmax()) if len(found) else -1
                hit = best >= 0 and float(found[best]) >= overlap
                chosen.append(int(target["labels"][best]) if hit else 0)
                truth = target["boxes"][best] if hit else box
                moves.append(stage.box_coder.encode_single(truth[None], box[None])[0])
            labels.append(torch.tensor(chosen))
            wanted.append(torch.stack(moves))
        logits, moves_found = stage.box_predictor(stage.box_head(stage.box_roi_pool(maps, regions, sizes)))
        of_class, of_box = fastrcnn_loss(logits, moves_found, labels, wanted)
        torch.testing.assert_close(losses.terms[f"class_{number}"], of_class)
        torch.testing.assert_close(losses.terms[f"box_{number}"], of_box)
        assert heads.objects[number - 1] == sum(int((label > 0).sum()) for label in labels)
        moved = stage.box_coder.decode(moves_found.detach()[:, :4], regions)[:, 0]
        regions = [
            each.clamp(torch.zeros(4), torch.tensor([size[1], size[0]] * 2).float())
            for each, size in zip(moved.split([len(each) for each in regions]), sizes, strict=True)
        ]


@pytest.mark.parametrize("head", HEADS)
def test_a_batch_without_objects_trains(head: str) -> None:
    """Parts that learn from objects alone get zeros, which several processes need, and nothing is nan."""
    task = detector(head)
    losses = task.loss(batch_for(task, [2]), PROGRESS)
    torch.autograd.backward(losses.total)
    assert all(value.isfinite() for value in losses.terms.values())
    assert all(p.grad is not None and p.grad.isfinite().all() for p in task.parameters() if p.requires_grad)


def test_what_is_found_does_not_depend_on_other_images() -> None:
    task = detector("mask-rcnn").eval()
    images = [torch.randint(0, 255, (3, *size), dtype=torch.uint8) for size in ((40, 20), (17, 60), (32, 32))]
    with torch.no_grad():
        together, alone = task.predict(images), [task.predict([image])[0] for image in images]
    for one, other, image in zip(together, alone, images, strict=True):
        torch.testing.assert_close(one.boxes, other.boxes, atol=1e-4, rtol=0)
        assert one.size == (image.shape[1], image.shape[2])
        assert one.masks is not None
        assert one.masks.shape[1:] == image.shape[1:]
        assert (one.boxes[:, 2] <= image.shape[2] + 1e-3).all()


def test_what_is_found_does_not_depend_on_the_first_image() -> None:
    """Torchvision takes the scales of maps from the first images that it sees."""
    flat, whole = torch.zeros(3, 12, 32, dtype=torch.uint8), torch.full((3, 32, 32), 200, dtype=torch.uint8)
    with torch.no_grad():
        alone = detector("mask-rcnn").eval().predict([whole])[0]
        task = detector("mask-rcnn").eval()
        task.predict([flat])
        after = task.predict([whole])[0]
    torch.testing.assert_close(after.boxes, alone.boxes)
    torch.testing.assert_close(after.scores, alone.scores)
    assert task.head.roi_heads.box_roi_pool.scales == [1 / 4, 1 / 8, 1 / 16, 1 / 32]


def test_anchors_are_those_of_torchvision() -> None:
    ours = Anchors((8.0, 16.0), (4, 8), (0.5, 1.0, 2.0))
    theirs = AnchorGenerator(((8.0,), (16.0,)), ((0.5, 1.0, 2.0),) * 2)
    maps = [torch.zeros(2, 5, 8, 6), torch.zeros(2, 5, 4, 3)]
    images = ImageList(torch.zeros(2, 3, 32, 24), [(32, 24)] * 2)
    for found, expected in zip(ours(images, maps), theirs(images, maps), strict=True):
        torch.testing.assert_close(found, expected)


def test_anchors_cover_images_of_patches_of_14_pixels() -> None:
    task = detector("faster-rcnn", BACKBONE.model_copy(update={"patch_size": 14, "image_size": 56}), 56)
    maps = task.head.features(task.backbone, torch.zeros(1, 3, 56, 56), None)
    assert maps["0"].shape[-2:] == (16, 16)
    anchors = task.head.rpn.anchor_generator.by_map(list(maps.values()))[0]
    centres = (anchors[:, :2] + anchors[:, 2:]) / 2
    assert centres.max() == 56 - 3.5
    assert task.head.roi_heads.box_roi_pool.scales[0] == pytest.approx(1 / 3.5)
