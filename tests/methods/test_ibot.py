import math
from typing import Any

import pytest
import torch
from torch import Tensor

from asterism.errors import UserError
from asterism.methods.ibot import Ibot, IbotConfig
from asterism.nn.backbone import BackboneConfig
from asterism.ops import collectives
from asterism.types import Batch, Progress
from tests.distributed import run
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
    """In the middle of training: student and teacher differ, centres are not zero."""
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


def _slow_patch_loss(method: Ibot, batch: Batch, temperature: float) -> Tensor:
    head, teacher_head = method.patch_head or method.head, (method.teacher_patch_head or method.teacher_head).network
    total, images = torch.zeros(()), len(batch.keys)
    for view, mask in zip(batch.views[:2], method.masks(batch), strict=True):
        for i in range(images):
            pixels, hidden = view.pixels[i : i + 1], mask[i : i + 1]
            student = head(method.backbone(pixels, mask=hidden).patches)[0]
            teacher = teacher_head(method.teacher_backbone.network(pixels).patches)[0].detach()
            entropies = []
            for j in range(hidden.shape[1]):
                if hidden[0, j]:
                    q = torch.softmax((teacher[j] - method.patch_center.value) / temperature, dim=0)
                    entropies.append(-(q * torch.log_softmax(student[j] / 0.1, dim=0)).sum())
            if entropies:
                total = total + torch.stack(entropies).mean() / (2 * images)
    return total


def _slow_cls_loss(method: Ibot, batch: Batch, temperature: float) -> Tensor:
    masks = [*method.masks(batch), None, None]
    total = torch.zeros(())
    for i in (0, 1):
        teacher = method.teacher_head.network(method.teacher_backbone.network(batch.views[i].pixels).cls).detach()
        q = torch.softmax((teacher - method.center.value) / temperature, dim=1)
        for j, view in enumerate(batch.views):
            if i != j:
                student = method.head(method.backbone(view.pixels, mask=masks[j]).cls)
                total = total - (q * torch.log_softmax(student / 0.1, dim=1)).sum(dim=1).mean()
    return total / (2 * len(batch.views) - 2)


@pytest.mark.parametrize("patch_out_dim", [None, 12])
def test_losses_and_gradients_are_those_of_the_slow_loops(patch_out_dim: int | None) -> None:
    method = _ibot(patch_out_dim=patch_out_dim, cls_weight=0.7, patch_weight=1.5)
    batch = random_batch(method, 4)
    assert {bool(m.any()) for mask in method.masks(batch) for m in mask} == {True, False}, "some masks are empty"
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
    batch = random_batch(method, 3)
    old, old_patch = method.center.value.clone(), method.patch_center.value.clone()
    tokens = [method.teacher_backbone(view.pixels) for view in batch.views[:2]]
    logits = torch.cat([method.teacher_head(view.cls) for view in tokens])
    patch_logits = torch.cat([method.teacher_patch_head(view.patches) for view in tokens]).flatten(0, 1)
    for part in (slice(0, 1), slice(1, 3)):  # uneven micro-batches
        method.loss(rows(batch, part), PROGRESS)
    method.after_update(PROGRESS)
    torch.testing.assert_close(method.center.value, 0.9 * old + 0.1 * logits.mean(dim=0))
    torch.testing.assert_close(method.patch_center.value, 0.8 * old_patch + 0.2 * patch_logits.mean(dim=0))


def test_teachers_follow() -> None:
    method = _ibot(patch_out_dim=12)
    before = [p.clone() for p in method.teacher_patch_head.parameters()]
    method.loss(random_batch(method, 2), PROGRESS)
    method.after_update(PROGRESS)
    momentum = 1 - 0.004 * (math.cos(math.pi * 7 / 40) + 1) / 2
    for old, new, student in zip(
        before, method.teacher_patch_head.parameters(), method.patch_head.parameters(), strict=True
    ):
        torch.testing.assert_close(new, momentum * old + (1 - momentum) * student)


def test_a_shared_head_is_saved_once() -> None:
    names = _ibot().state_dict()
    assert "head.mlp.0.weight" in names
    assert not any(name.startswith(("patch_head", "teacher_patch_head")) for name in names)


@pytest.mark.parametrize(
    "changes",
    [
        {"patch_out_dim": 12},
        {"patch_out_dim": 12, "patch_weight": 0},
        {"patch_weight": 0},
        {"cls_weight": 0, "local_views": 5},
    ],
)
def test_no_trained_parameter_lies_idle(changes: dict[str, Any]) -> None:
    method = _ibot(**changes)
    assert len(method.views) == 2 + (0 if changes.get("cls_weight") == 0 else method.config.local_views)
    method.loss(random_batch(method, 4), PROGRESS).total.backward()
    assert all(p.grad is not None for p in method.parameters() if p.requires_grad)


def test_a_head_for_patches_alone_is_the_usual_one() -> None:
    with pytest.raises(UserError, match="leave out patch_out_dim"):
        IbotConfig.parse({"cls_weight": 0, "patch_out_dim": 12})


def test_terms_can_be_left_out() -> None:
    images = _ibot(patch_weight=0)
    batch = random_batch(images, 2)
    assert set(images.loss(batch, PROGRESS).terms) == {"cls"}
    assert images.backbone.mask_token is None
    assert images.uniform_terms == {"cls": math.log(24)}
    patches = _ibot(cls_weight=0)
    losses = patches.loss(batch, PROGRESS)
    assert set(losses.terms) == {"patch"}
    for method in (images, patches):
        method.after_update(PROGRESS)


def test_no_mask_at_all_gives_no_patch_loss_and_no_error() -> None:
    method = _ibot(mask={"ratios": (0.0,)})
    losses = method.loss(random_batch(method, 2), PROGRESS)
    assert losses.terms["patch"] == 0
    losses.total.backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in method.parameters())


def test_masks_differ_between_views_and_images_and_follow_the_keys() -> None:
    method = _ibot(mask={"shape": "random"})
    batch = random_batch(method, 3)
    first, second = method.masks(batch)
    assert not torch.equal(first, second)
    assert not torch.equal(first[0], first[1])
    assert first.sum(dim=1).tolist() == [11, 11, 11]  # int(0.7 · 16)
    alone = method.masks(rows(batch, slice(1, 2)))
    assert torch.equal(alone[0], first[1:2])


def test_swin_learns_from_images_and_patches() -> None:
    swin = BackboneConfig(name="swin_tiny_patch4_window7_224", dim=64, patch_size=8, image_size=32)
    method = _ibot(backbone=swin)
    losses = method.loss(random_batch(method, 2), PROGRESS)
    losses.total.backward()
    assert method.backbone.mask_token.grad.abs().sum() > 0


def test_prototypes_wait_for_the_first_epochs_to_pass() -> None:
    method = _ibot(patch_out_dim=12)
    last = {*method.head.last_layer.parameters(), *method.patch_head.last_layer.parameters()}
    assert set(method.frozen(Progress(3, 40, steps_per_epoch=4))) == last
    assert set(method.frozen(Progress(4, 40, steps_per_epoch=4))) == set()


def test_settings_are_checked() -> None:
    with pytest.raises(UserError, match="both 0"):
        IbotConfig.parse({"cls_weight": 0, "patch_weight": 0})
    with pytest.raises(UserError, match="views of 10 pixels do not divide into patches of 4"):
        _ibot(local_size=10)
    with pytest.raises(UserError, match="'resnet50' is neither a plain vision transformer nor a Swin"):
        _ibot(BackboneConfig(name="resnet50"))  # a network without tokens that a mask could replace


def _half_of_the_batch() -> tuple[Tensor, Tensor, Tensor]:
    method = _ibot()
    rank = collectives.rank()
    loss = method.loss(rows(random_batch(method, 4), slice(2 * rank, 2 * rank + 2)), PROGRESS).total
    method.after_update(PROGRESS)
    return loss.detach(), method.center.value, method.patch_center.value


def test_two_processes_do_what_one_does() -> None:
    method = _ibot()
    loss = method.loss(random_batch(method, 4), PROGRESS).total.detach()
    method.after_update(PROGRESS)
    results = run(_half_of_the_batch)
    torch.testing.assert_close(torch.stack([part for part, _, _ in results]).mean(), loss)
    for _, center, patch_center in results:
        torch.testing.assert_close(center, method.center.value)
        torch.testing.assert_close(patch_center, method.patch_center.value)
