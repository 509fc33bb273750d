import math
from typing import Any

import pytest
import torch
from torch import Tensor

from asterism.errors import UserError
from asterism.methods.ibot import Ibot, IbotConfig
from asterism.nn.backbone import BackboneConfig
from asterism.nn.heads import LeveledPrototypeHead
from asterism.types import Batch, Progress
from tests.methods.batches import TINY, random_batch, rows

CONFIG: dict[str, Any] = {
    "out_dim": 24,
    "hidden_dim": 16,
    "bottleneck_dim": 8,
    "local_views": 2,
    "local_size": 8,
    "norm_last_layer": False,
    "warmup_teacher_patch_temp": 0.05,
}
PROGRESS = Progress(step=7, steps=40, steps_per_epoch=4)


def _ibot(backbone: BackboneConfig = TINY, **changes: Any) -> Ibot:
    """A method in the middle of training: student and teacher differ, centres are not zero."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        method = Ibot(IbotConfig(**(CONFIG | changes)), backbone)
        with torch.no_grad():
            for name, parameter in method.named_parameters():
                if not name.startswith("teacher"):
                    parameter.add_(0.05 * torch.randn_like(parameter))
            method.center.value.normal_(std=0.1)
            method.patch_center.value.normal_(std=0.1)
    return method


def _logits(head: LeveledPrototypeHead, tokens: Tensor, level: str) -> Tensor:
    return head.logits(head(tokens), level)


def _slow_patch_loss(method: Ibot, batch: Batch, temperature: float) -> Tensor:
    total, images = torch.zeros(()), len(batch.keys)
    for view, mask in zip(batch.views[:2], method.masks(batch, PROGRESS), strict=True):
        for i in range(images):
            pixels, hidden = view.pixels[i : i + 1], mask[i : i + 1]
            student = _logits(method.head, method.backbone(pixels, mask=hidden).patches, method.patch_level)[0]
            seen = method.teacher_backbone.network(pixels).patches
            teacher = _logits(method.teacher_head.network, seen, method.teacher_patch_level)[0].detach()
            entropies = []
            for j in range(hidden.shape[1]):
                if hidden[0, j]:
                    q = torch.softmax((teacher[j] - method.patch_center.value) / temperature, dim=0)
                    entropies.append(-(q * torch.log_softmax(student[j] / 0.1, dim=0)).sum())
            if entropies:
                total = total + torch.stack(entropies).mean() / (2 * images)
    return total


def _slow_cls_loss(method: Ibot, batch: Batch, temperature: float) -> Tensor:
    masks = [*method.masks(batch, PROGRESS), None, None]
    total = torch.zeros(())
    for i in (0, 1):
        seen = method.teacher_backbone.network(batch.views[i].pixels).cls
        teacher = _logits(method.teacher_head.network, seen, "image").detach()
        q = torch.softmax((teacher - method.center.value) / temperature, dim=1)
        for j, view in enumerate(batch.views):
            if i != j:
                student = _logits(method.head, method.backbone(view.pixels, mask=masks[j]).cls, "image")
                total = total - (q * torch.log_softmax(student / 0.1, dim=1)).sum(dim=1).mean()
    return total / (2 * len(batch.views) - 2)


@pytest.mark.parametrize(
    "changes",
    [{}, {"patch_out_dim": 12}, {"patch_out_dim": 24, "teacher_prototypes": "image"}, {"patch_center_of": "masked"}],
)
def test_losses_and_gradients_are_those_of_the_slow_loops(changes: dict[str, Any]) -> None:
    method = _ibot(**changes, cls_weight=0.7, patch_weight=1.5)
    batch = random_batch(method, 4)
    masks = method.masks(batch, PROGRESS)
    assert {bool(m.any()) for mask in masks for m in mask} == {True, False}, "some masks are empty"
    cls = _slow_cls_loss(method, batch, 0.04 + 0.03 / 29)
    patch = _slow_patch_loss(method, batch, 0.05 + 0.02 / 29)
    losses = method.loss(batch, PROGRESS)
    torch.testing.assert_close(losses.terms["cls"], cls, rtol=1e-5, atol=0)
    torch.testing.assert_close(losses.terms["patch"], patch, rtol=1e-5, atol=0)
    torch.testing.assert_close(losses.total, 0.7 * cls + 1.5 * patch, rtol=1e-5, atol=0)
    trained = [p for p in method.parameters() if p.requires_grad]
    expected = torch.autograd.grad(0.7 * cls + 1.5 * patch, trained)
    for own, slow in zip(torch.autograd.grad(losses.total, trained), expected, strict=True):
        torch.testing.assert_close(own, slow, rtol=1e-3, atol=1e-6)


def test_centres_follow_raw_logits_of_images_and_of_all_patches() -> None:
    method = _ibot(patch_out_dim=12, patch_center_momentum=0.8)
    batch, head = random_batch(method, 3), method.teacher_head.network
    old, old_patch = method.center.value.clone(), method.patch_center.value.clone()
    tokens = [method.teacher_backbone(view.pixels) for view in batch.views[:2]]
    logits = torch.cat([_logits(head, view.cls, "image") for view in tokens])
    patch_logits = torch.cat([_logits(head, view.patches, "patch") for view in tokens]).flatten(0, 1)
    for part in (slice(0, 1), slice(1, 3)):  # uneven micro-batches
        method.loss(rows(batch, part), PROGRESS)
    method.after_update(PROGRESS)
    torch.testing.assert_close(method.center.value, 0.9 * old + 0.1 * logits.mean(dim=0))
    torch.testing.assert_close(method.patch_center.value, 0.8 * old_patch + 0.2 * patch_logits.mean(dim=0))


def test_the_centre_of_masked_patches() -> None:
    method = _ibot(patch_center_of="masked", patch_center_momentum=0.8)
    batch, head = random_batch(method, 3), method.teacher_head.network
    old = method.patch_center.value.clone()
    masks = method.masks(batch, PROGRESS)
    tokens = [
        method.teacher_backbone(view.pixels).patches[mask] for view, mask in zip(batch.views, masks, strict=False)
    ]
    logits = _logits(head, torch.cat(tokens), "image")
    assert 0 < len(logits) < sum(mask.numel() for mask in masks)
    for part in (slice(0, 1), slice(1, 3)):  # uneven micro-batches
        method.loss(rows(batch, part), PROGRESS)
    method.after_update(PROGRESS)
    torch.testing.assert_close(method.patch_center.value, 0.8 * old + 0.2 * logits.mean(dim=0))


def test_a_teacher_without_patch_prototypes_starts_with_the_students() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        method = Ibot(IbotConfig(**CONFIG, patch_out_dim=24, teacher_prototypes="image"), TINY)
    (taught,) = method.teacher_head.network.last_layers.values()
    assert torch.equal(taught.weight_v, method.head.last_layers["patch"].weight_v)
    before = taught.weight_v.clone()
    method.loss(random_batch(method, 2), PROGRESS)
    method.after_update(PROGRESS)
    momentum = 1 - 0.004 * (math.cos(math.pi * 7 / 40) + 1) / 2
    image = method.head.last_layers["image"].weight_v
    torch.testing.assert_close(taught.weight_v, momentum * before + (1 - momentum) * image)


@pytest.mark.parametrize(
    ("changes", "terms"),
    [({"patch_out_dim": 12, "patch_weight": 0}, {"cls"}), ({"cls_weight": 0, "local_views": 5}, {"patch"})],
)
def test_terms_can_be_left_out(changes: dict[str, Any], terms: set[str]) -> None:
    method = _ibot(**changes)
    assert len(method.views) == (4 if "cls" in terms else 2)
    losses = method.loss(random_batch(method, 4), PROGRESS)
    assert set(losses.terms) == terms
    assert (method.backbone.mask_token is not None) == ("patch" in terms)
    assert method.uniform_terms == ({"cls": math.log(24)} if "cls" in terms else {})
    losses.total.backward()
    assert all(p.grad is not None for p in method.parameters() if p.requires_grad)
    method.after_update(PROGRESS)


def test_masks_differ_between_views_and_images_and_follow_the_keys() -> None:
    method = _ibot(mask={"shape": "random"})
    batch = random_batch(method, 3)
    first, second = method.masks(batch, PROGRESS)
    assert not torch.equal(first, second)
    assert not torch.equal(first[0], first[1])
    assert first.sum(dim=1).tolist() == [11, 11, 11]  # int(0.7 · 16)
    alone = method.masks(rows(batch, slice(1, 2)), PROGRESS)
    assert torch.equal(alone[0], first[1:2])


def test_masks_and_the_patch_temperature_can_start_late() -> None:
    method = _ibot(mask={"shape": "random", "start_epoch": 2}, warmup_teacher_temp_epochs=3)
    batch = random_batch(method, 2)
    epochs = [Progress(4 * epoch, 40, steps_per_epoch=4) for epoch in range(6)]
    assert [bool(torch.cat(method.masks(batch, epoch)).any()) for epoch in epochs] == [False, False, *[True] * 4]
    temperatures = [method.teacher_patch_temp(epoch) for epoch in epochs]
    assert temperatures == pytest.approx([0.05, 0.05, 0.05, 0.06, 0.07, 0.07])
    losses = method.loss(batch, epochs[0])
    assert losses.terms["patch"] == 0
    losses.total.backward()
    assert all(p.grad.isfinite().all() for p in method.parameters() if p.requires_grad)


def test_swin_learns_from_images_and_patches() -> None:
    swin = BackboneConfig(name="swin_tiny_patch4_window7_224", dim=64, patch_size=8, image_size=32)
    method = _ibot(backbone=swin)
    method.loss(random_batch(method, 2), PROGRESS).total.backward()
    assert method.backbone.mask_token.grad.abs().sum() > 0


def test_prototypes_are_frozen_in_the_first_epochs() -> None:
    method = _ibot(patch_out_dim=12)
    assert set(method.frozen(Progress(3, 40, steps_per_epoch=4))) == set(method.head.last_layers.parameters())
    assert set(method.frozen(Progress(4, 40, steps_per_epoch=4))) == set()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"cls_weight": 0, "patch_weight": 0}, "both 0"),
        ({"cls_weight": 0, "patch_out_dim": 12}, "leave out patch_out_dim"),
        ({"teacher_prototypes": "image", "patch_out_dim": 12}, "set patch_out_dim, which is 12, to out_dim"),
    ],
)
def test_impossible_settings_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        IbotConfig.parse(values)
