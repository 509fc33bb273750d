import math
from typing import Any

import pytest
import torch
from torch import Tensor

from asterism.errors import UserError
from asterism.methods.sop import Organizer, PrototypesConfig, Sop, SopConfig
from asterism.nn.backbone import BackboneConfig
from asterism.ops import collectives
from asterism.ops.random import fold, generator
from asterism.train.recipe import load_recipe, recipe_names
from asterism.types import Batch, Progress
from tests.distributed import run
from tests.methods.batches import TINY, random_batch, rows

IMAGES: dict[str, Any] = {"memory": 40, "count": 8, "neighbours": 3, "tasks": 2, "neighbour_lists": 6}
PATCHES: dict[str, Any] = {"memory": 20, "count": 6}
CONFIG: dict[str, Any] = {
    "hidden_dim": 16,
    "embedding_dim": 8,
    "local_views": 2,
    "local_size": 8,
    "images": IMAGES,
    "patches": PATCHES,
}
MASSL: dict[str, Any] = {
    "images": {"memory": 40, "count": 12, "neighbours": 0, "anchors": "partition"},
    "patches": None,
}
PROGRESS = Progress(step=7, steps=40, steps_per_epoch=4, seed=3)


def _sop(backbone: BackboneConfig = TINY, **changes: Any) -> Sop:
    """In the middle of training: student and teacher differ."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        method = Sop(SopConfig(**(CONFIG | changes)), backbone)
        with torch.no_grad():
            for name, parameter in method.named_parameters():
                if not name.startswith("teacher"):
                    parameter.add_(0.05 * torch.randn_like(parameter))
    return method


def _slow_prototypes(organizer: Organizer, use: int, task: int) -> tuple[Tensor, Tensor]:
    """D and Y of the default form, written out."""
    config, memory = organizer.config, organizer.memory.rows
    K = config.count
    anchors = torch.randperm(config.memory, generator=generator(fold(3, use, 7, task)))[:K].tolist()
    D, Y = [], []
    for i, anchor in enumerate(anchors):
        others = [j for j in range(config.memory) if j not in anchors]
        others.sort(key=lambda j: -float(memory[j] @ memory[anchor]))
        for member in [*others[: config.neighbours], anchor]:
            w = 0.9 if member == anchor else max(float(memory[member] @ memory[anchor]), 1 / K)
            D.append(memory[member])
            Y.append([w if column == i else (1 - w) / (K - 1) for column in range(K)])
    return torch.stack(D), torch.tensor(Y)


def _probabilities(u: Tensor, D: Tensor, Y: Tensor, temperature: float) -> Tensor:
    return torch.softmax(u @ D.T / temperature, dim=-1) @ Y


def _slow_terms(method: Sop, batch: Batch, temperature: float) -> tuple[Tensor, Tensor]:
    masks = [*method.masks(batch), None, None]
    tokens = [method.backbone(view.pixels, mask=mask) for view, mask in zip(batch.views, masks, strict=True)]
    seen = [method.teacher_backbone(view.pixels) for view in batch.views[:2]]
    images, (cls, patch) = len(batch.keys), (torch.zeros(()), torch.zeros(()))
    for task in range(2):
        D, Y = _slow_prototypes(method.images, 0x52, task)
        for i in (0, 1):
            q = _probabilities(method.teacher_head(seen[i].cls), D, Y, temperature)
            for j in range(4):
                if i != j:
                    p = _probabilities(method.head(tokens[j].cls), D, Y, 0.1)
                    cls = cls - (q * p.log()).sum() / (2 * 6 * images)
    D, Y = _slow_prototypes(method.patches, 0x53, 0)
    for i in (0, 1):
        q = _probabilities(method.teacher_head(seen[i].patches), D, Y, temperature)
        p = _probabilities(method.head(tokens[i].patches), D, Y, 0.1)
        crossed = -(q * p.log()).sum(dim=-1)
        for image in range(images):
            if masks[i][image].any():
                patch = patch + crossed[image][masks[i][image]].mean() / (2 * images)
    return cls, patch


@pytest.mark.parametrize("lists", [6, None])
def test_losses_and_gradients_are_those_of_the_slow_loops(lists: int | None) -> None:
    method = _sop(images=IMAGES | {"neighbour_lists": lists}, cls_weight=0.7, patch_weight=1.5)
    batch = random_batch(method, 4)
    temperature = 0.04 + 0.03 * 7 / (30 * 4 - 1)  # step 7 of a warm-up of 30 epochs of 4 steps
    cls, patch = _slow_terms(method, batch, temperature)
    losses = method.loss(batch, PROGRESS)
    torch.testing.assert_close(losses.terms["cls"], cls, rtol=1e-5, atol=0)
    torch.testing.assert_close(losses.terms["patch"], patch, rtol=1e-5, atol=0)
    trained = [p for p in method.parameters() if p.requires_grad]
    expected = torch.autograd.grad(0.7 * cls + 1.5 * patch, trained)
    for own, slow in zip(torch.autograd.grad(losses.total, trained), expected, strict=True):
        torch.testing.assert_close(own, slow, rtol=1e-3, atol=1e-6)


def test_massl_is_a_softmax_over_each_block_of_the_memory() -> None:
    method = _sop(**MASSL)
    batch = random_batch(method, 3)
    order = torch.randperm(40, generator=generator(fold(3, 0x52, 7)))
    expected, memory = torch.zeros(()), method.images.memory.rows
    temperature = 0.04 + 0.03 * 7 / 119
    for block in order[:36].view(3, 12):
        for i in (0, 1):
            teacher = method.teacher_head(method.teacher_backbone(batch.views[i].pixels).cls)
            q = torch.softmax(teacher @ memory[block].T / temperature, dim=1)
            for j, view in enumerate(batch.views):
                if i != j:
                    student = method.head(method.backbone(view.pixels).cls)
                    log_p = torch.log_softmax(student @ memory[block].T / 0.1, dim=1)
                    expected = expected - (q * log_p).sum(dim=1).mean() / (3 * 6)
    losses = method.loss(batch, PROGRESS)
    assert set(losses.terms) == {"cls"}
    torch.testing.assert_close(losses.total, expected, rtol=1e-5, atol=0)
    assert method.backbone.mask_token is None


def test_memories_take_the_teachers_second_view_once_per_step() -> None:
    method = _sop()
    batch = random_batch(method, 4)
    seen = method.teacher_backbone(batch.views[1].pixels)
    before = method.images.memory.rows.clone()
    for part in (slice(0, 1), slice(1, 4)):
        method.loss(rows(batch, part), PROGRESS)
    assert torch.equal(method.images.memory.rows, before)
    order = batch.keys.argsort()
    expected, patches = method.teacher_head(seen.cls)[order], method.teacher_head(seen.patches)[order]
    method.after_update(PROGRESS)
    torch.testing.assert_close(method.images.memory.rows[:4], expected)
    assert torch.equal(method.images.memory.rows[4:], before[4:])
    for row, candidates in zip(method.patches.memory.rows[:4], patches, strict=True):
        assert (row - candidates).abs().sum(dim=1).min() < 1e-5
    assert int(method.patches.memory.filled) == 4


def test_a_state_continues_as_if_nothing_had_happened() -> None:
    method = _sop()
    for step in range(5):
        progress = Progress(step, 40, 4, seed=3)
        method.loss(random_batch(method, 9, seed=step), progress)
        method.after_update(progress)
    other = _sop()
    other.load_state_dict(method.state_dict())
    for step in range(5, 8):
        progress, batch = Progress(step, 40, 4, seed=3), random_batch(method, 9, seed=step)
        assert method.loss(batch, progress).total == other.loss(batch, progress).total
        for one in (method, other):
            one.after_update(progress)
    assert torch.equal(method.images.memory.rows, other.images.memory.rows)


def test_prototypes_change_at_every_step_unless_they_are_fixed() -> None:
    def members(anchors: str, step: int) -> Tensor:
        method = _sop(images=IMAGES | {"anchors": anchors, "neighbours": 0})
        if step:
            method.images.memory.push(torch.nn.functional.normalize(torch.randn(40, 8, generator=generator(1)), dim=1))
        tasks = list(method.images.tasks(Progress(step, 40, 4), 1))
        assert len(tasks) == 2
        assert not torch.equal(tasks[0].members, tasks[1].members)
        return tasks[0].members

    assert not torch.equal(members("random", 0), members("random", 1))
    assert torch.equal(members("fixed", 0), members("fixed", 1))
    assert not torch.equal(members("fixed-places", 0), members("fixed-places", 1))
    config = IMAGES | {"anchors": "fixed-places", "neighbours": 0}
    organizer = Organizer(PrototypesConfig(**config), 8)
    first, later = (next(organizer.tasks(Progress(step, 40, 4), 1)).members for step in (0, 9))
    assert torch.equal(first, later)


@pytest.mark.parametrize(
    "changes",
    [{"images": IMAGES | {"contribution": form}} for form in ("constant", "block-diagonal", "one-hot")]
    + [
        {"images": IMAGES | {"search": "whole-memory"}},
        {"images": IMAGES | {"anchors": "fixed"}},
        {"images": IMAGES | {"tasks": 1}, "patches": PATCHES | {"tasks": 3, "neighbours": 2}},
        {"images": None},
        {"patches": None},
        {"global_token": "mean-patch"},
        {"mask": {"shape": "random"}},
        {"local_views": 0},
    ],
)
def test_every_ablation_learns(changes: dict[str, Any]) -> None:
    method = _sop(**changes)
    losses = method.loss(random_batch(method, 4), PROGRESS)
    losses.total.backward()
    method.after_update(PROGRESS)
    assert losses.total.isfinite()
    assert set(losses.terms) == {"cls", "patch"} - {
        "cls" if method.images is None else "",
        "patch" if method.patches is None else "",
    }
    assert method.head.mlp[0].weight.grad.abs().sum() > 0
    assert all(not value.requires_grad for value in losses.metrics.values())


def test_the_mean_patch_can_stand_for_the_image() -> None:
    method = _sop(global_token="mean-patch")
    tokens = method.teacher_backbone(random_batch(method, 2).views[0].pixels)
    assert torch.equal(method.image_tokens([tokens])[0], tokens.patches.mean(dim=1))


def test_swin_learns_from_images_and_patches() -> None:
    swin = BackboneConfig(name="swin_tiny_patch4_window7_224", dim=64, patch_size=8, image_size=32)
    method = _sop(backbone=swin)
    method.loss(random_batch(method, 2), PROGRESS).total.backward()
    assert method.backbone.mask_token.grad.abs().sum() > 0


def test_metrics_tell_how_full_the_memory_is_and_how_sure_teacher_and_student_are() -> None:
    method = _sop()
    method.images.memory.push(torch.zeros(10, 8))
    metrics = method.loss(random_batch(method, 2), PROGRESS).metrics
    assert metrics["memory_filled"] == 0.25
    assert 0 < metrics["target_entropy"] < math.log(8)
    assert 0 < metrics["prediction_entropy"] <= math.log(8) + 1e-5


def test_more_anchors_than_stored_rows_are_drawn_from_the_random_ones() -> None:
    method = _sop(images=IMAGES | {"count": 30})
    losses = method.loss(random_batch(method, 2), Progress(0, 40, 4))
    assert int(method.images.memory.filled) == 0
    assert losses.total.isfinite()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"images": {"memory": 4100}}, r"a memory of 4100 rows is smaller than 4096 anchors \+ 8 neighbours"),
        ({"patches": {"count": 9000}}, "memory of 8192 rows is smaller than 9000 anchors"),
        ({"images": {"anchors": "partition"}}, "set neighbours: 0"),
        ({"images": {"anchors": "partition", "neighbours": 0, "tasks": 2}}, "leave out tasks"),
        ({"images": {"search": "whole-memory", "neighbours": 0}}, "set neighbours to 1 or more"),
        ({"images": {"neighbours": 40}}, "neighbour_lists of 32 entries cannot hold 40"),
        ({"images": None, "patches": None}, "keep at least one of the tasks"),
    ],
)
def test_impossible_settings_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        SopConfig.parse(values)


def test_a_network_that_cannot_take_masks_is_refused() -> None:
    with pytest.raises(UserError, match="'resnet50' is neither a plain vision transformer nor a Swin"):
        Sop(SopConfig(), BackboneConfig(name="resnet50"))


def _two_steps(world: int) -> tuple[list[Tensor], Tensor, Tensor]:
    method = _sop()
    rank, losses = collectives.rank(), []
    for step in range(3):
        progress = Progress(step, 40, 4, seed=3)
        batch = random_batch(method, 6, seed=step)
        mine = slice(rank * 6 // world, (rank + 1) * 6 // world)
        losses.append(method.loss(rows(batch, mine), progress).total.detach())
        method.after_update(progress)
    return losses, method.images.memory.rows, method.patches.memory.rows


def test_two_processes_do_what_one_does() -> None:
    losses, images, patches = _two_steps(1)
    results = run(_two_steps, 2)
    halves = torch.tensor([part for part, _, _ in results])
    torch.testing.assert_close(halves.mean(dim=0), torch.stack(losses))
    for _, other_images, other_patches in results:
        torch.testing.assert_close(other_images, images)
        torch.testing.assert_close(other_patches, patches)
    assert torch.equal(results[0][1], results[1][1])


@pytest.mark.parametrize("name", [n for n in recipe_names() if n.split("-")[0] in ("ibot", "sop", "sove", "massl")])
def test_recipes_are_valid(name: str) -> None:
    recipe = load_recipe(name, values={"data": {"path": "photos"}})
    assert recipe.method.name == ("ibot" if name.startswith("ibot") else "sop")


@pytest.mark.parametrize(
    "override",
    [
        "images.count=1024",
        "images.memory=8192",
        "patches.memory=1024",
        "images.contribution=one-hot",
        "global_token=mean-patch",
        "mask.shape=random",
        "images=null",
        "patches=null",
        "images.anchors=fixed",
        "images.tasks=1",
        "momentum=0.992",
        "images.neighbours=16",
        "patches.neighbours=8",
        "patches.count=256",
    ],
)
def test_an_ablation_is_one_override(override: str) -> None:
    assert (
        load_recipe("sop-imagenet-vits16", [f"method.{override}"]).method != load_recipe("sop-imagenet-vits16").method
    )
