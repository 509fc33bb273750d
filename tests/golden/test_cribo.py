from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from asterism.nn.center import Center
from asterism.nn.object_bank import BankConfig, ObjectBank, StoredObjects
from asterism.ops.clustering import ClusteringConfig, cluster, mean_tokens, present_in_all, transport_rounds
from asterism.ops.cycle_consistency import closes_cycle
from asterism.ops.geometry import geometry_from_rows, patch_centers
from asterism.ops.losses import cross_view_loss, soft_targets
from asterism.ops.object_losses import Counts, ObjectSoftmax, neighbour_loss, object_loss
from tests.golden.vectors import Vectors, read, relative_error


def test_positions(golden: Path) -> None:
    vectors = read(golden / "cribo" / "positions.npz")
    rows = torch.cat((vectors["in_crop"], vectors["in_image_size"], vectors["in_flip"][:, None]), dim=1).float()
    grid = vectors.params["grid"]
    ours = patch_centers(geometry_from_rows(rows), (grid, grid))
    for name in ("out_positions", "out_positions_closed_form"):
        assert ours.shape == vectors[name].shape
        assert (ours - vectors[name]).abs().max() <= vectors.params["tolerance"], name


def _clustering(vectors: Vectors) -> ClusteringConfig:
    params = vectors.params
    return ClusteringConfig(
        clusters=vectors["in_seeds"].shape[1],
        position_weight=params["lambda_pos"],
        rounds=params["outer_iterations"],
        sharpness=params["sinkhorn_lambda"],
        sinkhorn_iterations=params["iterations"],
        marginal_offset=params["marginal_offset"],
        cost_range="batch",
    )


def test_clusters(golden: Path) -> None:
    vectors = read(golden / "cribo" / "clusters.npz")
    config, tolerance = _clustering(vectors), vectors.params["tolerance"]
    tokens, positions, seeds = (vectors[name] for name in ("in_tokens", "in_positions", "in_seeds"))

    rounds = list(transport_rounds(F.normalize(tokens, dim=-1), positions, seeds, config))
    assert torch.stack([each.labels for each in rounds]).equal(vectors["out_labels_each_outer"])
    for name, each in (("first", rounds[0]), ("last", rounds[-1])):
        assert relative_error(each.cost, vectors[f"out_cost_{name}"]) <= tolerance
        assert relative_error(each.plan, vectors[f"out_plan_{name}"]) <= tolerance

    labels = cluster(tokens, positions, seeds, config)
    assert labels.equal(vectors["out_labels"])
    by_view, tokens_by_view = (torch.stack(whole.chunk(2, dim=1)) for whole in (labels, tokens))
    assert present_in_all(by_view, config.clusters).equal(vectors["out_valid"])
    for view, objects in enumerate(mean_tokens(tokens_by_view, by_view, config.clusters), start=1):
        assert relative_error(objects, vectors[f"out_objects_view{view}"]) <= tolerance


def _in_slots(objects: Tensor, counts: Tensor, slots: int, first: int) -> StoredObjects:
    """Rows of two views, ordered by image, in the slots of their images, which are numbered from `first`."""
    valid = torch.arange(slots) < counts[:, None]
    rows = torch.zeros(len(counts), slots, *objects.shape[::2])
    rows[valid] = objects[:, : int(counts.sum())].transpose(0, 1)
    image = first + torch.arange(len(counts))
    return StoredObjects(rows, valid, torch.zeros(len(counts), slots, dtype=torch.int64), image, keys=image)


def _by_age(bank: ObjectBank) -> Tensor:
    """Valid slots, those of the newest images first."""
    images, slots = bank.valid.shape
    order = (bank.newest + torch.arange(images)) % images
    return (order[:, None] * slots + torch.arange(slots))[bank.valid[order]]


def test_neighbours(golden: Path) -> None:
    vectors = read(golden / "cribo" / "neighbours.npz")
    params = vectors.params
    images, slots = params["bank_images"], params["objects_per_image_max"]
    stored = torch.stack([vectors["in_bank_view1"], vectors["in_bank_view2"]])
    bank = ObjectBank(BankConfig(images=images, precision="full"), slots, stored.shape[-1])
    bank.push(_in_slots(stored, vectors["in_bank_counts"], slots, first=0))
    for step in range(params["steps"]):
        counts = vectors["in_object_counts"][step]
        both = torch.stack([vectors["in_objects_view1"][step], vectors["in_objects_view2"][step]])
        new = _in_slots(both, counts, slots, first=images + step * len(counts))  # no image occurs twice
        objects, count = new.rows[new.valid].transpose(0, 1), int(counts.sum())

        found = bank.nearest(objects, new.image[:, None].expand_as(new.valid)[new.valid])
        closed = closes_cycle(found, objects, bank.rows.flatten(1, 2))
        places = torch.full((images * slots,), -1)
        places[_by_age(bank)] = torch.arange(int(bank.valid.sum()))
        for view in range(2):
            assert places[found[view]].equal(vectors[f"out_idx{view + 1}"][step, :count])
            assert closed[view].equal(vectors[f"out_mask{view + 1}"][step, :count])

        bank.push(new)
        kept = _by_age(bank)
        assert len(kept) == int(vectors["out_bank_valid"][step].sum())
        newest_first = (bank.newest + torch.arange(images)) % images
        assert bank.valid[newest_first].sum(dim=1).equal(vectors["out_bank_counts"][step])
        for view in range(2):
            assert bank.take(view, kept).equal(vectors[f"out_bank_view{view + 1}"][step, : len(kept)])


def _object_softmax(vectors: Vectors) -> ObjectSoftmax:
    """The files give logits, so every prototype is a unit vector."""
    center, params = vectors["in_center_objects"][0], vectors.params
    unit = torch.eye(len(center))
    return ObjectSoftmax(unit, unit, center, params["student_temp_objects"], params["teacher_temp_objects"])


def _neighbours(vectors: Vectors, student: Tensor, masks: Tensor, counts: Counts) -> Tensor:
    """The neighbour term: the first view's neighbours in bank 1 are targets for the second view, and vice versa."""
    found = (vectors["in_teacher_neighbours1"][0], vectors["in_teacher_neighbours2"][1])
    theirs = [rows[mask] for rows, mask in zip(found, masks, strict=True)]
    return neighbour_loss(_object_softmax(vectors), student, theirs, masks, counts=counts)


def test_losses_and_gradients(golden: Path) -> None:
    vectors = read(golden / "cribo" / "loss.npz")
    params, tolerance = vectors.params, vectors.params["tolerance"]
    image = vectors["in_student_image"].clone().requires_grad_()
    student = torch.stack(vectors["in_student_objects"].chunk(2)).requires_grad_()
    teacher = torch.stack(vectors["in_teacher_objects"].chunk(2))
    masks = torch.stack([vectors["in_mask1"], vectors["in_mask2"]])

    targets = soft_targets(vectors["in_teacher_image"], vectors["in_center_image"][0], params["teacher_temp"])
    of_image = cross_view_loss(torch.stack(targets.chunk(2)), torch.stack(image.chunk(2)), params["student_temp"])
    objects = object_loss(_object_softmax(vectors), student, teacher)
    neighbours = _neighbours(vectors, student, masks, "first")
    total = of_image + objects.cross_entropy + neighbours

    assert relative_error(of_image, vectors["out_loss_image"]) <= tolerance
    assert relative_error(objects.cross_entropy, vectors["out_loss_objects"]) <= tolerance
    assert relative_error(neighbours, vectors["out_loss_neighbours"]) <= tolerance
    assert relative_error(total, vectors["out_total"]) <= tolerance
    by_image, by_objects = torch.autograd.grad(total, (image, student), retain_graph=True)
    assert relative_error(by_image, vectors["out_grad_student_image"]) <= tolerance
    assert relative_error(by_objects.flatten(0, 1), vectors["out_grad_student_objects"]) <= tolerance

    first_epoch = of_image + objects.cross_entropy
    (by_objects,) = torch.autograd.grad(first_epoch, student)
    assert relative_error(first_epoch, vectors["out_total_epoch0"]) <= tolerance
    assert relative_error(by_objects.flatten(0, 1), vectors["out_grad_student_objects_epoch0"]) <= tolerance


def test_losses_by_own_counts_and_without_neighbours(golden: Path) -> None:
    vectors = read(golden / "cribo" / "loss.npz")
    student = torch.stack(vectors["in_student_objects"].chunk(2))
    masks = torch.stack([vectors["in_mask1"], vectors["in_mask2"]])
    own = _neighbours(vectors, student, masks, "own")
    assert relative_error(own, vectors["out_loss_neighbours_own_counts"]) <= vectors.params["tolerance"]
    only_second = torch.stack([torch.zeros_like(masks[0]), masks[1]])
    assert _neighbours(vectors, student, only_second, "first") == vectors["out_loss_neighbours_mask1_empty"]


def test_centres(golden: Path) -> None:
    vectors = read(golden / "cribo" / "loss.npz")
    momenta = {"image": vectors.params["center_momentum"], "objects": vectors.params["center_momentum_objects"]}
    for level, momentum in momenta.items():
        logits = vectors[f"in_teacher_{level}"]
        center = Center(logits.shape[1], momentum)
        center.value.copy_(vectors[f"in_center_{level}"][0])
        center.accumulate(logits)
        center.update()
        assert relative_error(center.value[None], vectors[f"out_center_{level}"]) <= vectors.params["tolerance"]
