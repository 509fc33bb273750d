import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from asterism.errors import UserError
from asterism.methods.flsl import Flsl, FlslConfig
from asterism.ops.geometry import geometry_from_rows, locate, patch_centers
from asterism.ops.random import fold_each
from asterism.ops.soft_clusters import PowerLaw, prior_shares
from asterism.ops.window_sampling import sample_windows
from asterism.types import Batch, Progress, View
from tests.methods.batches import TINY, random_batch

CONFIG = FlslConfig(
    out_dim=12, hidden_dim=16, bottleneck_dim=8, local_views=3, local_size=12, steps=2, norm_last_layer=False
)
PROGRESS = Progress(step=7, steps=40, steps_per_epoch=4)
TEACHER_TEMP = 0.04 + (0.07 - 0.04) * 1 / 29  # epoch 1 of a warm-up of 30


def _flsl(drop_path: float = 0.0, **changes: object) -> Flsl:
    """A method whose student and teacher differ, as in the middle of training."""
    backbone = TINY.model_copy(update={"drop_path": drop_path, "positions": "sincos"})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        method = Flsl(CONFIG.model_copy(update=changes), backbone)
        with torch.no_grad():
            for parameter in (*method.backbone.parameters(), *method.head.parameters()):
                if parameter.requires_grad:
                    parameter.add_(0.05 * torch.randn_like(parameter))
    return method


def _nested_batch(method: Flsl, images: int) -> Batch:
    """A batch with crops as the views specify: two teacher crops of the same region, the others inside it."""
    batch = random_batch(method, images)
    g = torch.Generator().manual_seed(1)
    outer = torch.tensor([[10.0, 20.0, 80.0, 60.0, 120.0, 130.0, 0.0]]).expand(images, -1)
    views = []
    for number, view in enumerate(batch.views):
        box = outer.clone()
        if number >= 2:
            shrink = 0.4 + 0.5 * torch.rand(images, 2, generator=g)
            offset = torch.rand(images, 2, generator=g) * (1 - shrink)
            box[:, :2] += offset * outer[:, 2:4]
            box[:, 2:4] *= shrink
        views.append(View(view.pixels, geometry_from_rows(box)))
    return replace(batch, views=tuple(views))


def _attend(query: Tensor, keys: Tensor, scale: float) -> Tensor:
    return torch.softmax(scale * (keys @ query), dim=0) @ keys


def _slow_loss(method: Flsl, batch: Batch, *, projected: bool = False) -> Tensor:
    """Equation 13, query by query."""
    config, root = method.config, math.sqrt(method.backbone.dim)
    teacher = [method.teacher_backbone.network(view.pixels).patches.detach() for view in batch.views[:2]]
    distances, entropies, predictions = [], [], []
    for number, view in enumerate(batch.views[2:]):
        tokens = method.backbone(view.pixels)
        other = 1 - number % 2
        keys = fold_each(batch.keys, 0x0F, number)
        places = sample_windows(keys, tokens.grid, config.window if number < 2 else config.local_window)
        cells, seen = locate(batch.views[other].geometry, patch_centers(view.geometry, tokens.grid), (4, 4))
        assert seen.all(), "student crops are inside the teacher's"
        for image, Z in enumerate(tokens.patches):
            for place in places[image]:
                z = mode = Z[place]
                for _ in range(config.steps):
                    mode = _attend(mode, Z, config.intra_scale / root)
                positive = _attend(z.detach(), teacher[other][image], config.inter_scale / root)
                if projected:
                    positive = teacher[other][image, cells[image, place]]
                target = torch.softmax(method.teacher_head.network(positive).detach() / TEACHER_TEMP, dim=0)
                prediction = torch.log_softmax(method.head(mode) / config.student_temp, dim=0)
                distances.append((z / z.norm() - mode / mode.norm()).square().sum())
                entropies.append(-(target * prediction).sum())
                predictions.append(prediction.exp())
    mean = torch.stack(predictions).mean(dim=0)
    volume = (mean * (mean / prior_shares(config.prior, config.out_dim)).log()).sum()
    intra, inter = torch.stack(distances).mean(), torch.stack(entropies).mean()
    return (config.intra_weight * intra + config.inter_weight * inter + config.volume_weight * volume).float()


@pytest.mark.parametrize("kind", ["retrieved", "projected", "prior"])
def test_loss_and_gradient_are_those_of_the_slow_loop(kind: str) -> None:
    changes = {"projected": {"projected_epochs": 2}, "prior": {"prior": PowerLaw(exponent=0.7)}, "retrieved": {}}[kind]
    method = _flsl(intra_weight=0.3, **changes)
    batch = _nested_batch(method, 2)
    trained = [p for p in method.parameters() if p.requires_grad]
    expected = _slow_loss(method, batch, projected=kind == "projected")
    ours = method.loss(batch, PROGRESS).total
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=0)
    for own, slow in zip(torch.autograd.grad(ours, trained), torch.autograd.grad(expected, trained), strict=True):
        torch.testing.assert_close(own, slow, rtol=1e-3, atol=2e-6)


def test_projected_positives_end_with_their_epochs() -> None:
    method = _flsl(projected_epochs=2)
    batch = _nested_batch(method, 2)
    late = Progress(step=8, steps=40, steps_per_epoch=4)
    plain = _flsl().loss(batch, late).total
    torch.testing.assert_close(method.loss(batch, late).total, plain)
    assert not torch.allclose(method.loss(batch, PROGRESS).total, _flsl().loss(batch, PROGRESS).total)


def test_positions_outside_the_teacher_crop_are_retrieved() -> None:
    method = _flsl(projected_epochs=2)
    batch = random_batch(method, 2)
    away = [replace(view.geometry, left=view.geometry.left + 1000) for view in batch.views[:2]]
    moved = [replace(view, geometry=place) for view, place in zip(batch.views[:2], away, strict=True)]
    unseen = replace(batch, views=(*moved, *batch.views[2:]))
    torch.testing.assert_close(method.loss(unseen, PROGRESS).total, _flsl().loss(unseen, PROGRESS).total)


def test_sinkhorn_targets_are_balanced_over_the_batch() -> None:
    batch = random_batch(_flsl(), 3)
    plain, balanced = (_flsl(targets=kind).loss(batch, PROGRESS) for kind in ("softmax", "sinkhorn"))
    torch.testing.assert_close(plain.terms["intra"], balanced.terms["intra"])
    torch.testing.assert_close(plain.terms["volume"], balanced.terms["volume"])
    assert not torch.allclose(plain.terms["inter"], balanced.terms["inter"])


def test_views_are_nested_and_teacher_crops_coincide() -> None:
    views = _flsl().views
    assert [view.size for view in views] == [16, 16, 16, 16, 12, 12, 12]
    assert [view.same_place for view in views] == [None, 0, None, None, None, None, None]
    assert [view.inside for view in views] == [None, None, 0, 1, 0, 1, 0]
    assert [view.scale for view in views] == [(0.8, 1.0)] * 2 + [(0.5, 1.0)] * 2 + [(0.1, 0.4)] * 3
    assert {(view.flip, view.blur, view.solarize, view.grayscale) for view in views} == {(0.0, 0.5, 0.2, 0.2)}
    own = Flsl(FlslConfig(out_dim=12, local_views=1), TINY.model_copy(update={"image_size": 32})).views
    assert [view.size for view in own] == [32] * 4 + [12]  # 32 · 3/7 in patches of 4


def test_symmetric_crops_are_seen_by_both_networks() -> None:
    with pytest.warns(UserWarning, match=r"crops = symmetric.*collapses"):
        method = _flsl(crops="symmetric", local_views=1)
    assert [view.inside for view in method.views] == [None, None, 0]
    assert [view.same_place for view in method.views] == [None] * 3
    batch = random_batch(method, 2)
    student, teacher = method.encode(batch)
    assert len(student) == 3
    torch.testing.assert_close(student[1].tokens, method.backbone(batch.views[1].pixels).patches)
    torch.testing.assert_close(teacher[0].tokens, method.teacher_backbone(batch.views[0].pixels).patches)
    assert method.loss(batch, PROGRESS).total.isfinite()


def test_the_teacher_follows_and_the_last_layer_is_frozen_at_first() -> None:
    method = _flsl()
    before = method.teacher_head.network.mlp[0].weight.clone()
    method.after_update(PROGRESS)
    momentum = 1 - (1 - 0.996) * (math.cos(math.pi * 7 / 40) + 1) / 2
    expected = momentum * before + (1 - momentum) * method.head.mlp[0].weight
    torch.testing.assert_close(method.teacher_head.network.mlp[0].weight, expected)
    assert set(method.frozen(Progress(3, 40, steps_per_epoch=4))) == set(method.head.last_layer.parameters())
    assert set(method.frozen(Progress(4, 40, steps_per_epoch=4))) == set()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"window": 5}, r"window = 5 does not fit a view of 16 pixels.*choose 1 … 4"),
        ({"local_window": 4}, r"local_window = 4 does not fit a view of 12 pixels.*choose 1 … 3"),
        ({"local_size": 10}, r"views of 10 pixels do not divide into patches of 4; set method.local_size"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        _flsl(**changes)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"prior": [0.5, 0.2, 0.2], "out_dim": 3}, r"sum to 0.9; they must sum to 1: divide each by 0.9"),
        ({"prior": [0.5, 0.5], "out_dim": 3}, r"prior has 2 shares for out_dim = 3"),
        ({"prior": [1.0, 0.0], "out_dim": 2}, r"every cluster needs a share above 0"),
        ({"window": 0}, r"window = 0"),
        ({"targets": "balanced"}, r"targets = 'balanced'"),
    ],
)
def test_settings_are_checked(settings: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        FlslConfig.parse(settings)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"inter_scale": 0.05}, r"inter_scale = 0.05 is below method.intra_scale = 0.1.*collapses"),
        ({"intra_weight": 0.0}, r"intra_weight = 0 leaves out.*collapses"),
    ],
)
def test_warnings_name_settings_that_collapse(changes: dict[str, object], message: str) -> None:
    with pytest.warns(UserWarning, match=message):
        _flsl(**changes)
