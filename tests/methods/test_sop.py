import math
from typing import Any

import pytest
import torch
from torch import Tensor

from asterism.errors import UserError
from asterism.methods.sop import Sop, SopConfig
from asterism.nn.backbone import BackboneConfig
from asterism.nn.prototype_memory import PrototypeMemory, PrototypesConfig
from asterism.ops import prototypes
from asterism.ops.prototypes import Prototypes
from asterism.ops.random import fold, generator
from asterism.train.recipe import load_recipe, recipe_names
from asterism.types import Batch, Progress
from tests.methods.batches import TINY, random_batch, rows

IMAGES: dict[str, Any] = {"memory": 40, "count": 8, "neighbours": 3, "tasks": 2}
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
    """A method in the middle of training: student and teacher differ."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        method = Sop(SopConfig(**(CONFIG | changes)), backbone)
        with torch.no_grad():
            for name, parameter in method.named_parameters():
                if not name.startswith("teacher"):
                    parameter.add_(0.05 * torch.randn_like(parameter))
    return method


def _tasks(organizer: PrototypeMemory, progress: Progress) -> list[Prototypes]:
    return list(organizer.prototypes(organizer.draw(progress, use=1)))


def _slow_prototypes(organizer: PrototypeMemory, use: int, task: int) -> tuple[Tensor, Tensor]:
    """D and Y, written out."""
    config, memory = organizer.config, organizer.memory.rows
    K = int(config.kept * config.count)
    if organizer.fixed is None:
        anchors = torch.randperm(config.memory, generator=generator(fold(3, use, 7, task)))[: config.count].tolist()
    else:
        anchors = list(range(config.memory, config.memory + config.count))
        memory = torch.cat([memory, organizer.fixed[task]])
    D, Y = [], []
    for i, anchor in enumerate(anchors[:K]):
        near = sorted(range(len(memory)), key=lambda j: -float(memory[j] @ memory[anchor]))
        if config.search == "whole-memory":
            members = near[: config.neighbours]
        else:
            members = [*[j for j in near if j not in anchors][: config.neighbours], anchor]
        for member in members:
            w = 1 - config.smoothing if member == anchor else max(float(memory[member] @ memory[anchor]), 0.0)
            if config.contribution == "constant":
                w = 1 - config.smoothing
            rest = 0.0 if config.contribution in ("block-diagonal", "one-hot") else (1 - w) / (K - 1)
            own = 1.0 if config.contribution == "one-hot" else w
            D.append(memory[member])
            Y.append([own if column == i else rest for column in range(K)])
    return torch.stack(D), torch.tensor(Y)


def _probabilities(u: Tensor, D: Tensor, Y: Tensor, temperature: float) -> Tensor:
    p = torch.softmax(u @ D.T / temperature, dim=-1) @ Y
    return p / p.sum(dim=-1, keepdim=True)  # changes only block-diagonal contributions, which do not sum to one


def _slow_terms(method: Sop, batch: Batch, temperature: float) -> tuple[Tensor, Tensor]:
    masks = [*method.draw(batch, PROGRESS).masks, None, None]
    tokens = [method.backbone(view.pixels, mask=mask) for view, mask in zip(batch.views, masks, strict=True)]
    seen = [method.teacher_backbone(view.pixels) for view in batch.views[:2]]
    images, (cls, patch) = len(batch.keys), (torch.zeros(()), torch.zeros(()))
    tasks = method.images.config.task_count
    for task in range(tasks):
        D, Y = _slow_prototypes(method.images, 0x52, task)
        for i in (0, 1):
            q = _probabilities(method.teacher_head(seen[i].cls), D, Y, temperature)
            for j in range(4):
                if i != j:
                    p = _probabilities(method.head(tokens[j].cls), D, Y, 0.1)
                    cls = cls - (q * p.log()).sum() / (tasks * 6 * images)
    tasks = method.patches.config.task_count
    for task in range(tasks):
        D, Y = _slow_prototypes(method.patches, 0x53, task)
        for i in (0, 1):
            q = _probabilities(method.teacher_head(seen[i].patches), D, Y, temperature)
            p = _probabilities(method.head(tokens[i].patches), D, Y, 0.1)
            crossed = -(q * p.log()).sum(dim=-1)
            for image in range(images):
                if masks[i][image].any():
                    patch = patch + crossed[image][masks[i][image]].mean() / (tasks * 2 * images)
    return cls, patch


FORMS: list[dict[str, Any]] = [
    {"search": search, "contribution": contribution, "smoothing": 0.2}
    for search in ("non-anchors", "whole-memory")
    for contribution in ("similarity", "constant", "block-diagonal", "one-hot")
]


@pytest.mark.parametrize(
    ("images", "patches"),
    [
        ({}, {}),
        ({}, {"tasks": 2, "neighbours": 2}),
        ({"kept": 0.5}, {"kept": 0.5, "neighbours": 2}),
        ({"anchors": "fixed", "kept": 0.5}, {"anchors": "fixed", "neighbours": 1}),
        *[(form, {}) for form in FORMS],
        *[({}, form | {"neighbours": 2, "tasks": 2}) for form in FORMS[1::3]],
    ],
)
def test_losses_and_gradients_are_those_of_the_slow_loops(
    images: dict[str, Any], patches: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prototypes, "_CHUNK", 100)  # several chunks, the last one smaller
    method = _sop(images=IMAGES | images, patches=PATCHES | patches, cls_weight=0.7, patch_weight=1.5)
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


def test_memories_store_the_second_view_of_the_teacher_once_per_step() -> None:
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


def test_prototypes_change_at_every_step_unless_they_are_fixed() -> None:
    def members(anchors: str, step: int) -> Tensor:
        method = _sop(images=IMAGES | {"anchors": anchors, "neighbours": 0})
        if step:
            method.images.memory.push(torch.nn.functional.normalize(torch.randn(40, 8, generator=generator(1)), dim=1))
        tasks = _tasks(method.images, Progress(step, 40, 4))
        assert len(tasks) == 2
        assert not torch.equal(tasks[0].members, tasks[1].members)
        return tasks[0].members

    assert not torch.equal(members("random", 0), members("random", 1))
    assert torch.equal(members("fixed", 0), members("fixed", 1))
    assert not torch.equal(members("fixed-places", 0), members("fixed-places", 1))
    config = IMAGES | {"anchors": "fixed-places", "neighbours": 0}
    organizer = PrototypeMemory(PrototypesConfig(**config), 8)
    first, later = (_tasks(organizer, Progress(step, 40, 4))[0].members for step in (0, 9))
    assert torch.equal(first, later)


@pytest.mark.parametrize(
    "changes",
    [
        {"images": IMAGES | {"tasks": 1}, "patches": PATCHES | {"tasks": 3, "neighbours": 2}},
        {"images": None},
        {"patches": None},
        {"global_token": "mean-patch"},
        {"mask": {"shape": "random"}},
        {"local_views": 0},
    ],
)
def test_every_ablation_trains(changes: dict[str, Any]) -> None:
    method = _sop(**changes)
    losses = method.loss(random_batch(method, 4), PROGRESS)
    losses.total.backward()
    method.after_update(PROGRESS)
    assert losses.total.isfinite()
    terms = {"cls": method.images, "patch": method.patches}
    assert set(losses.terms) == {term for term, part in terms.items() if part is not None}
    assert method.head.mlp[0].weight.grad.abs().sum() > 0
    assert all(not value.requires_grad for value in losses.metrics.values())


def test_the_mean_patch_can_represent_the_image_in_training_and_in_use() -> None:
    method = _sop(global_token="mean-patch")
    pixels = random_batch(method, 2).views[0].pixels
    tokens = method.teacher_backbone(pixels)
    assert tokens.cls is None
    assert torch.equal(method.loss(random_batch(method, 2), PROGRESS).embeddings, tokens.patches.mean(dim=1))
    features = method.encoder()(pixels)
    torch.testing.assert_close(features.cls, features.patches.mean(dim=1))


def test_the_momentum_of_the_teacher_starts_at_0_994() -> None:
    method = _sop()
    before = [p.clone() for _, teacher in method.pairs for p in teacher.parameters()]
    method.loss(random_batch(method, 2), PROGRESS)
    method.after_update(PROGRESS)
    momentum = 1 - 0.006 * (math.cos(math.pi * 7 / 40) + 1) / 2
    students = [p for student, _ in method.pairs for p in student.parameters()]
    after = [p for _, teacher in method.pairs for p in teacher.parameters()]
    for old, new, student in zip(before, after, students, strict=True):
        torch.testing.assert_close(new, momentum * old + (1 - momentum) * student)


def test_patches_alone_need_no_small_views() -> None:
    method = _sop(images=None, patches=PATCHES | {"neighbours": 2}, local_views=5)
    assert len(method.views) == 2
    assert not method.uniform_terms
    assert method.loss(random_batch(method, 2), PROGRESS).total.isfinite()


def test_the_koleo_term_spreads_the_images_of_each_large_view() -> None:
    method = _sop(**MASSL, koleo_weight=0.3)
    batch, expected = random_batch(method, 3), torch.zeros(())
    for view in batch.views[:2]:
        u = method.head(method.backbone(view.pixels).cls)
        for i in range(3):
            distances = [(u[i] - u[j]).norm() for j in range(3) if j != i]
            expected = expected - torch.stack(distances).min().log() / 6
    losses = method.loss(batch, PROGRESS)
    torch.testing.assert_close(losses.terms["koleo"], expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(losses.total, losses.terms["cls"] + 0.3 * losses.terms["koleo"])
    with pytest.raises(UserError, match="give it two or more"):
        method.loss(rows(batch, slice(0, 1)), PROGRESS)


def test_the_stored_patch_is_drawn_uniformly() -> None:
    method = _sop()
    places = method.draw(random_batch(method, 4000), PROGRESS).stored_patch
    counts = places.bincount(minlength=16)
    assert len(counts) == 16
    assert (counts - 250).abs().max() < 4.5 * math.sqrt(4000 / 16 * 15 / 16)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"images": {"memory": 4100}}, r"a memory of 4100 rows is smaller than 4096 anchors \+ 8 neighbours"),
        ({"patches": {"count": 9000}}, "memory of 8192 rows is smaller than 9000 anchors"),
        ({"images": {"count": 4, "kept": 0.4}}, r"kept = 0.4 of 4 anchors are fewer than 2"),
        ({"images": None, "koleo_weight": 0.1}, "images is null; leave it out"),
        ({"images": {"anchors": "partition"}}, "set neighbours: 0"),
        ({"images": {"anchors": "partition", "neighbours": 0, "tasks": 2}}, "leave out tasks and kept"),
        ({"images": {"search": "whole-memory", "neighbours": 0}}, "set neighbours to 1 or more"),
        ({"cls_weight": 0}, "set images: null"),
        ({"patch_weight": 0}, "set patches: null"),
        ({"mask": {"ratios": []}}, "ratios is empty"),
        ({"images": None, "patches": None}, "keep at least one of the tasks"),
    ],
)
def test_impossible_settings_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        SopConfig.parse(values)


PUBLISHED = {  # memory, count, neighbours and tasks of images; the same of patches; momentum, epochs of the warm-up
    "sop": ((65536, 4096, 8, 4), (8192, 512, 0, 1)),
    "sove": ((65536, 8192, 8, 4), (8192, 512, 0, 1)),
    "massl": ((131072, 16384, 0, 8), None),
}


@pytest.mark.parametrize("name", [n for n in recipe_names() if n.split("-")[0] in PUBLISHED and "imagenet" in n])
def test_published_recipes_have_the_values_of_the_papers(name: str) -> None:
    recipe = load_recipe(name, values={"data": {"path": "photos"}})
    method = recipe.method
    assert isinstance(method, SopConfig)
    assert recipe.backbone.resampling == ("antialiased" if "swin" in name else "offset")
    parts = [
        None if part is None else (part.memory, part.count, part.neighbours, part.task_count)
        for part in (method.images, method.patches)
    ]
    assert tuple(parts) == PUBLISHED[name.split("-")[0]]
    assert (method.embedding_dim, method.hidden_dim) == (256, 2048)
    assert (method.student_temp, method.warmup_teacher_temp, method.teacher_temp) == (0.1, 0.04, 0.07)
    assert method.warmup_teacher_temp_epochs == (30 if "vits" in name or "swin" in name else 50)
    assert (method.cls_weight, method.patch_weight) == (1, 1)
    if name.startswith("massl"):
        optim = recipe.optim
        assert (method.global_scale, method.local_scale, optim.clip) == ((0.32, 1), (0.05, 0.32), 3)
        assert (method.momentum, optim.warmup_epochs) == ((0.992, 0) if "vits" in name else (0.996, 10))
    else:
        assert method.momentum == 0.994
        assert method.images.kept == (0.5 if name.startswith("sop") else 1)
        assert method.mask.start_epoch == (50 if "swin" in name else 0)
        assert (method.images.search, method.images.contribution, method.images.anchors) == (
            "non-anchors",
            "similarity",
            "random",
        )


def test_a_setting_of_version_0_1_that_changed_only_speed_is_ignored() -> None:
    assert PrototypesConfig.parse({"neighbour_lists": 40}) == PrototypesConfig()
