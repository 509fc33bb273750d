import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from asterism.errors import UserError
from asterism.methods.cribo import Cribo, CriboConfig
from asterism.nn.object_bank import BankConfig
from asterism.ops import collectives
from asterism.ops.clustering import ClusteringConfig, cluster, draw_seeds
from asterism.ops.geometry import patch_centers
from asterism.ops.neighbours import reciprocal_lengths
from asterism.ops.object_losses import neighbour_loss
from asterism.ops.random import fold_each
from asterism.types import Batch, CropGeometry, Progress
from tests.distributed import run
from tests.methods.batches import TINY, random_batch, rows

CONFIG = CriboConfig(
    objects=ClusteringConfig(clusters=5, rounds=2),
    bank=BankConfig(images=12, precision="full"),
    object_batch="all",
    out_dim=24,
    object_out_dim=20,
    hidden_dim=16,
    bottleneck_dim=8,
    norm_last_layer=False,
)
PROGRESS = Progress(step=7, steps=40, steps_per_epoch=4)
FIRST_EPOCH = Progress(step=3, steps=40, steps_per_epoch=4)
TEACHER_TEMP = 0.04 + (0.07 - 0.04) * 1 / 29  # epoch 1 of a warm-up of 30


def _cribo(**changes: Any) -> Cribo:
    """A method in the middle of training: student, teacher and centres differ, and the bank has seen eight images."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        method = Cribo(CONFIG.model_copy(update=changes), TINY)
        with torch.no_grad():
            for parameter in (*method.backbone.parameters(), *method.head.parameters()):
                parameter.add_(0.05 * torch.randn_like(parameter))
            method.center.value.normal_(std=0.1)
            method.object_center.value.normal_(std=0.1)
    if method.bank is not None:
        # Similar to the batch, so that some cycles close, but stored as other images.
        g = torch.Generator().manual_seed(3)
        for part in range(2):
            batch = _batch(method, 4)
            views = tuple(
                replace(view, pixels=view.pixels + 0.5 * torch.randn(view.pixels.shape, generator=g))
                for view in batch.views
            )
            method.loss(Batch(views, batch.index + 100 + 4 * part, batch.keys + part), PROGRESS)
            method.bank.store()
        method.center._pending = method.object_center._pending = None
    return method


def _batch(method: Cribo, images: int) -> Batch:
    """Noise whose crops overlap, the second one flipped."""
    batch = random_batch(method, images)
    count = torch.ones(images)
    first = CropGeometry(0 * count, 2 * count, 20 * count, 18 * count, 40 * count, 40 * count, count < 0)
    second = CropGeometry(5 * count, 4 * count, 24 * count, 30 * count, 40 * count, 40 * count, count > 0)
    views = (replace(batch.views[0], geometry=first), replace(batch.views[1], geometry=second))
    return replace(batch, views=views)


def _slow_terms(method: Cribo, batch: Batch) -> tuple[dict[str, Tensor], tuple[int, int]]:
    """The three losses of the equations, pair by pair, and Z_1, Z_2."""
    config, bank = method.config, method.bank
    assert bank is not None
    teacher_head, clusters = method.teacher_head.network, config.objects.clusters
    seen = [method.teacher_backbone.network(view.pixels) for view in batch.views]
    tokens = [method.backbone(view.pixels) for view in batch.views]

    def distance(theirs: Tensor, ours: Tensor, level: str, center: Tensor) -> Tensor:
        target = (teacher_head.logits(teacher_head(theirs), level) - center).div(TEACHER_TEMP).softmax(-1).detach()
        return -(target * method.head.logits(method.head(ours), level).div(0.1).log_softmax(-1)).sum()

    image = torch.zeros(())
    for i in range(len(batch.index)):
        for view in (0, 1):
            image = image + distance(seen[view].cls[i], tokens[1 - view].cls[i], "image", method.center.value)

    positions = torch.cat([patch_centers(view.geometry, (4, 4)) for view in batch.views], dim=1)
    seeds = draw_seeds(fold_each(batch.keys, 0x60), 32, clusters)
    labels = cluster(torch.cat([t.patches for t in seen], dim=1), positions, seeds, config.objects).chunk(2, dim=1)
    theirs, ours, owners = [], [], []
    for i in range(len(batch.index)):
        for k in range(clusters):
            chosen = [label[i] == k for label in labels]
            if all(mask.any() for mask in chosen):
                theirs.append([seen[view].patches[i][chosen[view]].mean(dim=0).detach() for view in (0, 1)])
                ours.append([tokens[view].patches[i][chosen[view]].mean(dim=0) for view in (0, 1)])
                owners.append(int(batch.index[i]))
    count = len(owners)
    center = method.object_center.value
    objects = torch.zeros(())
    for j in range(count):
        for view in (0, 1):
            objects = objects + distance(theirs[j][view], ours[j][1 - view], "objects", center)

    neighbours, accepted = torch.zeros(()), [0, 0]
    for view in (0, 1):
        total, other = torch.zeros(()), 1 - view
        for j in range(count):
            slots = [
                (i, k)
                for i in range(bank.images)
                for k in range(clusters)
                if bank.valid[i, k] and bank.image[i] != owners[j]
            ]
            best = max(slots, key=lambda s: float(torch.cosine_similarity(theirs[j][view], bank.rows[view][s], 0)))
            jumped = bank.rows[other][best]
            back = max(range(count), key=lambda m: float(torch.cosine_similarity(jumped, theirs[m][other], 0)))
            if back == j:
                total = total + distance(bank.rows[view][best], ours[j][other], "objects", center)
                accepted[view] += 1
        neighbours = neighbours + total / max(1, accepted[view])
    halves = {"image": image / len(batch.index) / 2, "objects": objects / count / 2, "neighbours": neighbours / 2}
    return halves, (accepted[0], accepted[1])


def test_losses_and_gradients_are_those_of_the_slow_loop() -> None:
    method = _cribo()
    batch = _batch(method, 4)
    expected, (first, second) = _slow_terms(method, batch)
    assert first > 0
    assert second > 0
    assert first != second
    losses = method.loss(batch, PROGRESS)
    trained = [p for p in method.parameters() if p.requires_grad]
    for name, value in losses.terms.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=0)
    torch.testing.assert_close(losses.total, sum(expected.values()), rtol=1e-5, atol=0)
    slow = torch.autograd.grad(sum(expected.values()), trained)
    for own, other in zip(torch.autograd.grad(losses.total, trained), slow, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(losses.metrics["bootstrapping_ratio"], torch.tensor((first + second) / (2 * 5 * 4)))


def test_neighbours_are_not_used_in_the_first_epoch() -> None:
    method = _cribo()
    early, late = (method.loss(_batch(method, 4), progress) for progress in (FIRST_EPOCH, PROGRESS))
    assert early.terms["neighbours"] == 0
    assert late.terms["neighbours"] > 0
    assert early.metrics["bootstrapping_ratio"] == late.metrics["bootstrapping_ratio"] > 0
    early.total.backward()


def test_without_the_criterion_every_neighbour_is_accepted() -> None:
    method = _cribo(criterion="none")
    metrics = method.loss(_batch(method, 4), PROGRESS).metrics
    torch.testing.assert_close(metrics["bootstrapping_ratio"], metrics["objects_per_image"] / 5)
    assert metrics["bootstrapping_ratio"] > _cribo().loss(_batch(method, 4), PROGRESS).metrics["bootstrapping_ratio"]


@pytest.mark.parametrize(
    ("weights", "terms"),
    [
        ({"object_weight": 0.0, "neighbour_weight": 0.0}, {"image"}),
        ({"neighbour_weight": 0.0}, {"image", "objects"}),
        ({"image_weight": 0.0, "object_weight": 0.0}, {"neighbours"}),
    ],
)
def test_terms_can_be_left_out(weights: dict[str, float], terms: set[str]) -> None:
    method = _cribo(**weights)
    losses = method.loss(_batch(method, 4), PROGRESS)
    assert set(losses.terms) == terms
    losses.total.backward()
    assert all(p.grad is not None for p in method.parameters() if p.requires_grad), "no parameter is unused"
    method.after_update(PROGRESS)
    uniform = {"image": math.log(24), "objects": math.log(20)}
    assert method.uniform_terms == {term: value for term, value in uniform.items() if term in terms}


def _halves(method: Cribo, images: int) -> Batch:
    """Labelled regions: the first view shows region 1, the second one region 2."""
    batch = _batch(method, images)
    size = batch.views[0].pixels.shape[-1]
    labels = [torch.full((images, size, size), number) for number in (1, 2)]
    views = tuple(replace(view, segments=label) for view, label in zip(batch.views, labels, strict=True))
    return replace(batch, views=views)


def test_a_batch_in_which_no_object_spans_both_views() -> None:
    method = _cribo()
    method.config = CONFIG.model_copy(update={"objects": CONFIG.objects.model_copy(update={"algorithm": "segments"})})
    before = method.object_center.value.clone()
    losses = method.loss(_halves(method, 3), PROGRESS)
    assert losses.terms["objects"] == losses.terms["neighbours"] == 0
    assert losses.metrics["objects_per_image"] == 0
    assert all(value.isfinite() for value in losses.metrics.values())
    losses.total.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in method.parameters() if p.requires_grad)
    method.after_update(PROGRESS)
    assert method.object_center.value.equal(before)
    assert method.bank is not None
    newest = (method.bank.newest + torch.arange(3)) % 12
    assert not method.bank.valid[newest].any()
    method.config = CONFIG
    assert method.loss(_batch(method, 3), PROGRESS).total.isfinite(), "images without objects in the bank do no harm"


def test_labelled_regions_are_objects() -> None:
    objects = CONFIG.objects.model_copy(update={"algorithm": "segments"})
    method = Cribo(CONFIG.model_copy(update={"objects": objects}), TINY)
    batch = _halves(method, 2)
    first, second = (torch.zeros(2, 16, 16, dtype=torch.int64) for _ in range(2))
    first[0, :, 8:], first[1] = 7, -1
    second[0, 4:] = 7
    views = (replace(batch.views[0], segments=first), replace(batch.views[1], segments=second))
    seen = [method.teacher_backbone(view.pixels) for view in views]
    labels = method.find_objects(replace(batch, views=views), seen, PROGRESS)
    assert labels[0, 0].tolist() == [1, 1, 0, 0] * 4  # 20 of 32 patches have label 7
    assert labels[1, 0].tolist() == [1] * 4 + [0] * 12
    assert labels[:, 1].tolist() == [[-1] * 16, [0] * 16]
    losses = method.loss(replace(batch, views=views), PROGRESS)
    assert losses.metrics["objects_per_image"] == 1
    with pytest.raises(UserError, match="needs images with labelled regions"):
        method.loss(_batch(method, 2), PROGRESS)


def test_neighbours_can_be_accepted_by_labels() -> None:
    method = _cribo(criterion="none")
    method.config = CONFIG.model_copy(update={"criterion": "segments"})
    batch = _halves(method, 4)  # every object present in both views has the labels {1, 2}
    assert method.bank is not None
    for meaning, ratio in ((0, 0.0), (int(_meaning(method, batch)), 1.0)):
        method.bank.meaning.fill_(meaning)
        metrics = method.loss(batch, PROGRESS).metrics
        torch.testing.assert_close(5 * metrics["bootstrapping_ratio"], ratio * metrics["objects_per_image"])
        method.bank._pending = []
    with pytest.raises(UserError, match="criterion = segments needs images with labelled regions"):
        method.loss(_batch(method, 4), PROGRESS)


def _meaning(method: Cribo, batch: Batch) -> Tensor:
    return method.collect_objects(batch, *_encoded(method, batch)).meaning.unique().squeeze()


def test_the_bank_follows_once_per_step_with_the_teachers_objects() -> None:
    whole, split = _cribo(), _cribo()
    batch = _batch(whole, 4)
    whole.loss(batch, PROGRESS)
    for part in (slice(0, 2), slice(2, 4)):
        split.loss(rows(batch, part), PROGRESS)
    assert whole.bank is not None
    assert split.bank is not None
    assert not (whole.bank.image == 0).any(), "losses do not change the bank"
    for method in (whole, split):
        method.after_update(PROGRESS)
    assert set(whole.bank.image.tolist()) == {0, 1, 2, 3, *range(100, 108)}
    for name, value in whole.bank.state_dict().items():
        torch.testing.assert_close(split.bank.state_dict()[name], value)
    torch.testing.assert_close(split.object_center.value, whole.object_center.value)
    torch.testing.assert_close(split.center.value, whole.center.value)


def test_an_image_never_learns_from_itself() -> None:
    """A data set of one batch: an image may only find other images in the bank."""
    method = _cribo(criterion="none", bank=BankConfig(images=4, precision="full"))
    batch = _batch(method, 4)
    method.loss(batch, PROGRESS)
    method.after_update(PROGRESS)
    assert method.bank is not None
    assert sorted(method.bank.image.tolist()) == [0, 1, 2, 3]
    objects = method.collect_objects(batch, *_encoded(method, batch))
    slots, accepted = method.find_neighbours(method.bank, objects)
    found = method.bank.image[slots // 5]
    assert accepted.all()
    assert (found != objects.image).all()


def _encoded(method: Cribo, batch: Batch) -> tuple[Any, Any, Tensor]:
    seen = [method.teacher_backbone(view.pixels) for view in batch.views]
    tokens = [method.backbone(view.pixels) for view in batch.views]
    return seen, tokens, method.find_objects(batch, seen, PROGRESS)


def test_settings_are_checked() -> None:
    with pytest.raises(UserError, match="are all 0"):
        CriboConfig.parse({"image_weight": 0, "object_weight": 0, "neighbour_weight": 0})
    with pytest.raises(UserError, match=r"objects.clusters = 33 is more than the 32 tokens"):
        Cribo(CONFIG.model_copy(update={"objects": ClusteringConfig(clusters=33)}), TINY)
    with pytest.raises(UserError, match="views of 18 pixels do not divide into patches of 4"):
        Cribo(CONFIG.model_copy(update={"view_size": 18}), TINY)
    small = Cribo(CONFIG.model_copy(update={"bank": BankConfig(images=3)}), TINY)
    with pytest.raises(UserError, match=r"bank.images = 3 is smaller than a batch of 4"):
        small.loss(_batch(small, 4), PROGRESS)


def _half_of_the_batch(state: str, config: CriboConfig) -> dict[str, Any]:
    """The results of one of two processes, starting from a saved state."""
    method = Cribo(config, TINY)
    method.load_state_dict(torch.load(state, weights_only=True))
    part = slice(2 * collectives.rank(), 2 * collectives.rank() + 2)
    losses = method.loss(rows(_batch(method, 4), part), PROGRESS)
    losses.total.backward()
    terms = {name: value.detach() for name, value in losses.terms.items()}
    method.after_update(PROGRESS)
    assert method.bank is not None
    return {
        "terms": terms,
        "metrics": dict(losses.metrics),
        "gradient": method.backbone.network.patch_embed.proj.weight.grad,
        "center": method.object_center.value,
        "bank": dict(method.bank.state_dict()),
    }


def test_as_published_each_process_uses_its_own_batch(tmp_path: Path) -> None:
    """A process has the same terms alone and together with another; centre and bank follow both."""
    own = CONFIG.model_copy(update={"object_batch": "process"})
    assert CriboConfig().object_batch == "process"
    path = str(tmp_path / "state.pt")
    whole = _cribo()
    assert whole.bank is not None
    whole.bank.rows += torch.randn(whole.bank.rows.shape, generator=torch.Generator().manual_seed(2))
    whole.bank.reciprocal_length.copy_(reciprocal_lengths(whole.bank.rows))
    torch.save(whole.state_dict(), path)
    results = run(_half_of_the_batch, path, own)
    ratios = []
    for rank, result in enumerate(results):
        alone = Cribo(own, TINY)
        alone.load_state_dict(torch.load(path, weights_only=True))
        losses = alone.loss(rows(_batch(alone, 4), slice(2 * rank, 2 * rank + 2)), PROGRESS)
        ratios.append(losses.metrics["bootstrapping_ratio"])
        for name, value in losses.terms.items():
            torch.testing.assert_close(result["terms"][name], value.detach())
        torch.testing.assert_close(result["metrics"]["bootstrapping_ratio"], ratios[-1])
    everyone = whole.loss(_batch(whole, 4), PROGRESS)
    assert torch.stack(ratios).mean() > everyone.metrics["bootstrapping_ratio"], "fewer candidates close more cycles"
    whole.after_update(PROGRESS)
    torch.testing.assert_close(results[0]["center"], whole.object_center.value)
    torch.testing.assert_close(results[0]["bank"]["rows"], whole.bank.rows)


def test_both_directions_can_be_divided_by_the_first_count() -> None:
    method = _cribo()
    batch = _batch(method, 4)
    _, (first, second) = _slow_terms(method, batch)
    bank = method.bank
    assert bank is not None
    c = method.collect_objects(batch, *_encoded(method, batch))
    nn, accepted = method.find_neighbours(bank, c)
    totals = []
    for view in (0, 1):  # one direction at a time, by its own count
        only = accepted.clone()
        only[1 - view] = False
        h_nn = method.project_neighbours(bank, nn, only)
        loss = neighbour_loss(method.object_softmax(PROGRESS), method.project(c)[0], h_nn, only)
        totals.append(loss * (first, second)[view])
    method.config = CONFIG.model_copy(update={"neighbour_counts": "first"})
    bank._pending = []
    torch.testing.assert_close(method.loss(batch, PROGRESS).terms["neighbours"], (totals[0] + totals[1]) / first)
