"""Heads against slow or library references; gradients; heads that do not fit."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from asterism.errors import UserError
from asterism.finetuning.segmentation.heads import HEADS
from asterism.finetuning.segmentation.heads.base import dropped_channels
from asterism.finetuning.segmentation.heads.fpn import SemanticFpn
from asterism.finetuning.segmentation.heads.mask_transformer import MaskTransformer
from asterism.finetuning.segmentation.heads.upernet import UperNet
from asterism.finetuning.segmentation.segment import SegmentConfig
from asterism.types import Progress
from tests.finetuning.segmentation.drawn import sample
from tests.finetuning.segmentation.tiny_heads import SMALL, segment
from tests.finetuning.tiny import BACKBONE, SWIN, start

PROGRESS = Progress(0, 10, 5)


def pixels(height: int = 32, width: int = 48) -> Tensor:
    return torch.randn(2, 3, height, width, generator=torch.Generator().manual_seed(5))


def logits_of(task: Any, images: Tensor) -> Tensor:
    with torch.no_grad():
        return task.eval().head(task.head.read(task.backbone, images, None), None)[0]


def jolted(task: Any) -> Any:
    """The task with parameters and statistics away from their special initial values."""
    torch.manual_seed(3)
    with torch.no_grad():
        for value in task.head.state_dict().values():
            if value.is_floating_point():
                value.add_(0.1 * torch.rand_like(value))
    return task


def test_all_heads_are_tried_here() -> None:
    assert set(SMALL) == set(HEADS)


def test_the_linear_head_is_one_layer_on_the_last_tokens() -> None:
    task = jolted(segment("linear"))
    tokens = task.backbone(pixels())
    layer = task.head.classifier
    found = logits_of(task, pixels())
    assert found.shape == (2, 3, 4, 6)
    for row in range(4):
        for column in range(6):
            vector = tokens.patches[:, row * 6 + column]
            torch.testing.assert_close(found[:, :, row, column], F.linear(vector, layer.weight[..., 0, 0], layer.bias))


def test_the_linear_head_joins_the_normed_tokens_of_the_last_blocks() -> None:
    task = jolted(segment("linear", head={"layers": 2, "norm": True}))
    first, last = task.backbone.layers(pixels(), [-2, -1])
    both = torch.cat([first.patches, last.patches], dim=2)
    norm, layer = task.head.norm, task.head.classifier
    scaled = (both - norm.running_mean) / (norm.running_var + norm.eps).sqrt() * norm.weight + norm.bias
    expected = F.linear(scaled, layer.weight[..., 0, 0], layer.bias)
    torch.testing.assert_close(logits_of(task, pixels()).flatten(2).mT, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("normed", [False, True])
def test_linear4_joins_four_blocks(normed: bool) -> None:
    begin = start(BACKBONE.model_copy(update={"depth": 6}))
    task = jolted(segment("linear4", begin, head={"final_norm": normed}))
    assert task.head.read_blocks == (1, 2, 3, 5)  # 3, 5, 7 and 11 of 12, in proportion
    found = [each.patches for each in task.backbone.block_outputs(pixels(), (1, 2, 3, 5))]
    if normed:
        found = [task.backbone.network.norm(each) for each in found]
    layer = task.head.classifier
    expected = F.linear(torch.cat(found, dim=2), layer.weight[..., 0, 0], layer.bias)
    torch.testing.assert_close(logits_of(task, pixels()).flatten(2).mT, expected, atol=1e-5, rtol=1e-5)


def conv(layers: Any, x: Tensor, padding: int = 0) -> Tensor:
    """Convolution, batch norm in evaluation mode, and ReLU, from the state alone."""
    convolution, norm = layers[0], layers[1]
    x = F.conv2d(x, convolution.weight, padding=padding)
    parts = (norm.running_mean, norm.running_var, norm.weight, norm.bias)
    mean, var, weight, bias = (part[:, None, None] for part in parts)
    return ((x - mean) / (var + norm.eps).sqrt() * weight + bias).relu()


def bilinear(x: Tensor, size: Any) -> Tensor:
    return F.interpolate(x, tuple(size), mode="bilinear", align_corners=False)


@pytest.mark.parametrize("size", [(32, 48), (40, 24)])
def test_upernet_is_the_published_decoder(size: tuple[int, int]) -> None:
    """Pooling at scales 1, 2, 3, 6 on the coarsest level, top-down sums, 3×3 convolutions, fusion at the finest."""
    task = jolted(segment("upernet"))
    head = task.head
    assert isinstance(head, UperNet)
    images = pixels(*size)
    with torch.no_grad():
        levels = head.pyramid(task.eval().backbone.block_outputs(images, head.read_blocks))
        decoder: Any = head.decoder
        pooled = [
            bilinear(conv(block[1], F.adaptive_avg_pool2d(levels[3], side)), levels[3].shape[2:])
            for side, block in zip((1, 2, 3, 6), decoder.psp.blocks, strict=True)
        ]
        top = conv(decoder.psp.out_conv, torch.cat([levels[3], *pooled], dim=1), padding=1)
        summed = [top]
        for block, level in zip(decoder.fpn_lateral_blocks, (2, 1, 0), strict=True):
            summed.append(conv(block.conv_norm_relu, levels[level]) + bilinear(summed[-1], levels[level].shape[2:]))
        smooth = [top, *(conv(b, x, 1) for b, x in zip(decoder.fpn_conv_blocks, summed[1:], strict=True))]
        fine = torch.cat([bilinear(each, levels[0].shape[2:]) for each in reversed(smooth)], dim=1)
        expected = head.classifier(conv(decoder.fusion_block, fine, padding=1))
    torch.testing.assert_close(logits_of(task, images), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("size", [(32, 48), (40, 24)])
def test_semantic_fpn_is_its_definition(size: tuple[int, int]) -> None:
    task = jolted(segment("fpn"))
    head = task.head
    assert isinstance(head, SemanticFpn)
    images = pixels(*size)
    with torch.no_grad():
        levels = head.pyramid(task.eval().backbone.block_outputs(images, head.read_blocks))
        inner = [F.conv2d(x, layer.weight, layer.bias) for layer, x in zip(head.lateral, levels, strict=True)]
        for level in (2, 1, 0):
            inner[level] = inner[level] + F.interpolate(inner[level + 1], inner[level].shape[2:], mode="nearest")
        outer = [F.conv2d(x, la.weight, la.bias, padding=1) for la, x in zip(head.smooth, inner, strict=True)]
        total = conv(head.rising[0][0], outer[0], padding=1)
        for level in (1, 2, 3):
            x = outer[level]
            for layer in head.rising[level]:
                x = bilinear(conv(layer, x, padding=1), (2 * x.shape[2], 2 * x.shape[3]))
            total = total + bilinear(x, total.shape[2:])
        expected = head.classifier(total)
    assert [len(each) for each in head.rising] == [1, 1, 2, 3]
    torch.testing.assert_close(logits_of(task, images), expected, atol=1e-5, rtol=1e-4)


def test_the_mask_transformer_is_a_product_of_class_and_patch_tokens() -> None:
    task = jolted(segment("mask-transformer"))
    head = task.head
    assert isinstance(head, MaskTransformer)
    with torch.no_grad():
        patches = task.eval().backbone(pixels()).patches
        x = torch.cat([head.input(patches), head.class_tokens.expand(2, 3, 32)], dim=1)
        for block in head.blocks:
            x = block(x)
        x = head.norm(x)
        expected = torch.empty(2, 3, 24)
        for image in range(2):
            for patch in range(24):
                there = x[image, patch] @ head.patch_projection
                products = []
                for label in range(3):
                    token = x[image, 24 + label] @ head.class_projection
                    products.append(there @ token / there.norm() / token.norm())
                expected[image, :, patch] = head.mask_norm(torch.stack(products))
    torch.testing.assert_close(logits_of(task, pixels()).flatten(2), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("head", SMALL)
@pytest.mark.parametrize("config", [BACKBONE, SWIN], ids=["vit", "swin"])
def test_gradients_reach_what_is_trained_and_nothing_else(head: str, config: Any) -> None:
    if config is SWIN and head == "linear4":
        pytest.skip("does not fit a Swin")
    torch.manual_seed(0)
    task = segment(head, start(config, size=config.image_size)).train()
    batch = task.samples()([sample(number) for number in range(4)], [1, 2, 3, 4])
    torch.autograd.backward(task.loss(batch, PROGRESS).total)
    trained = {name for name, parameter in task.named_parameters() if parameter.requires_grad}
    reached = {name for name, p in task.named_parameters() if p.grad is not None and p.grad.any()}
    assert reached == trained
    frozen = HEADS[head].freezes
    assert any(name.startswith("backbone.") for name in trained) is not frozen
    assert task.backbone.training is not frozen
    assert {name for name, _, _ in task.depths()} == trained


def test_the_auxiliary_classifier_only_trains() -> None:
    task = segment("upernet")
    batch = task.samples()([sample(number) for number in range(4)], [1, 2, 3, 4])
    losses = task.loss(batch, PROGRESS)
    assert losses.weights == {"cross_entropy": 1.0, "auxiliary_cross_entropy": 0.4}
    assert set(segment("upernet", head={"auxiliary": 0}).loss(batch, PROGRESS).terms) == {"cross_entropy"}


def test_channels_are_dropped_by_the_key_of_the_image_alone() -> None:
    features = torch.ones(4, 1000, 2, 2)
    dropped = dropped_channels(features, torch.tensor([7, 8, 9, 7]), 0.25, 1)
    assert torch.equal(dropped[0], dropped[3])
    assert not torch.equal(dropped[0], dropped[1])
    assert torch.equal(dropped.unique(), torch.tensor([0.0, 4 / 3]))
    assert float(dropped.mean()) == pytest.approx(1, abs=0.06)
    assert torch.equal(dropped_channels(features, None, 0.25, 1), features)


@pytest.mark.parametrize(
    ("head", "config", "settings", "message"),
    [
        ("linear4", SWIN, {}, "those of a Swin's stages have different grids"),
        ("linear", SWIN, {"layers": 4}, "the network has 2 blocks whose tokens have its final grid"),
        ("linear", BACKBONE, {"layers": 9}, "choose at most 3"),
        ("upernet", SWIN, {"final_norm": True}, "the final norm of a Swin fits its last stage only"),
        ("upernet", SWIN, {"blocks": [0, 1, 2, 3]}, "the levels of a Swin are the ends of its stages"),
        ("fpn", BACKBONE, {"blocks": [0, 1, 2, 3]}, "the network has the blocks 0 … 2"),
        ("mask-transformer", BACKBONE, {"heads": 5}, "heads = 5 does not divide the 32 channels of the network"),
    ],
)
def test_a_head_that_does_not_fit_is_refused(head: str, config: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        segment(head, start(config, size=config.image_size), head=settings)


def test_batch_norm_needs_two_images() -> None:
    with pytest.raises(UserError, match="each process gets 1 image at a time, but the batch norm of head=upernet"):
        SegmentConfig.parse({"head": "upernet"}).check_micro_batch(1)
    SegmentConfig.parse({"head": "linear"}).check_micro_batch(1)
