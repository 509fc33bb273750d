from pathlib import Path

import pytest
import torch
from torch import Tensor

from asterism.evals.bbox_knn import point_accuracy
from asterism.nn.positions import sincos_table
from asterism.ops.box_cells import boxes_in_square, boxes_in_squashed_square, largest_box_cells
from asterism.ops.mean_shift import mean_shift, mode_distance
from asterism.ops.random import fold_each
from asterism.ops.schedules import cosine, ramp_per_epoch, warmup_cosine
from asterism.ops.soft_clusters import Assignments, agreement, divergence
from asterism.ops.window_sampling import sample_windows, window_cells
from asterism.types import Progress
from tests.golden.vectors import Vectors, read, relative_error


@pytest.fixture(scope="module")
def schedules(golden: Path) -> Vectors:
    return read(golden / "flsl" / "schedules.npz")


def test_learning_rate(schedules: Vectors) -> None:
    params = schedules.params
    per_epoch = params["iterations_per_epoch"]
    steps = params["epochs"] * per_epoch
    warmup = int(params["warmup_fraction"] * params["epochs"]) * per_epoch
    warmup_b = params["warmup_epochs_b"] * per_epoch
    peak, final, start = params["lr"], params["lr_final"], params["start_warmup_b"]
    plain = [warmup_cosine(step, steps, peak, final, warmup) for step in range(steps)]
    started = [warmup_cosine(step, steps, peak, final, warmup_b, start) for step in range(steps)]
    assert relative_error(torch.tensor(plain), schedules["out_lr"]) <= params["tolerance"]
    assert relative_error(torch.tensor(started), schedules["out_lr_with_start"]) <= params["tolerance"]


def test_weight_decay_and_momentum(schedules: Vectors) -> None:
    params = schedules.params
    steps = params["epochs"] * params["iterations_per_epoch"]
    decay = [cosine(step, steps, params["wd"], params["wd_final"]) for step in range(steps)]
    momentum = [cosine(step, steps, params["momentum"], 1.0) for step in range(steps)]
    assert relative_error(torch.tensor(decay), schedules["out_weight_decay"]) <= params["tolerance"]
    assert relative_error(torch.tensor(momentum), schedules["out_momentum"]) <= params["tolerance"]


@pytest.mark.parametrize("warmup", ["given", "none"])
def test_teacher_temperature(schedules: Vectors, warmup: str) -> None:
    params = schedules.params
    epochs = params["temp_warmup_epochs"] if warmup == "given" else 0
    expected = schedules["out_teacher_temp" if warmup == "given" else "out_teacher_temp_no_warmup"]
    start, final, per_epoch = params["temp_start"], params["temp_final"], params["iterations_per_epoch"]
    progress = [Progress(e * per_epoch, params["epochs"] * per_epoch, per_epoch) for e in range(params["epochs"])]
    ours = [ramp_per_epoch(p, epochs, start, final) for p in progress]
    assert relative_error(torch.tensor(ours), expected) <= params["tolerance"]


def test_mean_shift(golden: Path) -> None:
    file = read(golden / "flsl" / "mean_shift.npz")
    source, queries, params = file["in_source"], file["in_queries"], file.params
    across = mean_shift(queries, file["in_keys"], params["scale"])
    within = mean_shift(queries, source, params["scale_self"])
    assert relative_error(across, file["out_modes"]) <= params["tolerance"]
    assert relative_error(within, file["out_modes_self"]) <= params["tolerance"]


def test_loss_and_gradients(golden: Path) -> None:
    """Logits replace embeddings: with unit vectors as prototypes they are the same."""
    file = read(golden / "flsl" / "loss.npz")
    params = file.params
    z, modes, logits = (file[name].clone().requires_grad_() for name in ("in_z", "in_modes", "in_student_logits"))
    clusters = torch.eye(logits.shape[1])
    found = agreement(
        Assignments(logits, clusters, params["student_temp"]),
        Assignments(file["in_teacher_logits"], clusters, params["teacher_temp"]),
    )
    intra = mode_distance(z, modes)
    volume = divergence(found.mean_probability, torch.full((len(clusters),), 1 / len(clusters)).log())
    weights = (params["coef_intra"], params["coef_inter"], params["coef_volume"])
    total = sum(weight * term for weight, term in zip(weights, (intra, found.cross_entropy, volume), strict=True))
    gradients = torch.autograd.grad(total, (z, modes, logits))
    ours = {
        "intra": intra,
        "inter": found.cross_entropy,
        "volume": volume,
        "total": total,
        "grad_z": gradients[0],
        "grad_modes": gradients[1],
        "grad_student_logits": gradients[2],
    }
    for name, value in ours.items():
        error = relative_error(value, file[f"out_{name}"])
        assert error <= params["tolerance"], f"{name}: {error}"


def _mask(cells: Tensor, length: int) -> Tensor:
    return torch.zeros(length, dtype=torch.bool).index_fill_(0, cells.flatten(), True)


def test_window_sampling(golden: Path) -> None:
    file = read(golden / "flsl" / "sampling.npz")
    length = file["out_window_id"].shape[-1]
    for case, (side, window) in enumerate(zip(file["in_grid"].tolist(), file["in_window"].tolist(), strict=True)):
        grid, ids = (side, side), file["out_window_id"][case]
        cells = window_cells(grid, window)
        assert cells.shape[1] == file["out_count"][case]
        assert len(cells.unique(dim=0)) == file["out_distinct_anchors"][case]
        for corner, windows in enumerate(cells):
            own = torch.full((length,), -1).index_put_(
                (windows.flatten(),), torch.arange(len(windows)).repeat_interleave(window * window)
            )
            assert own.equal(ids[corner])
            assert _mask(windows[:, 0], length).equal(file["out_mask_fixed"][case, corner])

        keys = fold_each(torch.arange(4000), case)
        fixed, random = (sample_windows(keys, grid, window, mode) for mode in ("fixed", "random"))
        assert _mask(fixed, length).equal(file["out_admissible_fixed"][case])
        assert _mask(random, length).equal(file["out_admissible_random"][case])
        expected = torch.arange(cells.shape[1])
        of_corners = torch.stack([own_ids[random] for own_ids in ids])  # the window of each drawn cell, per corner
        assert (of_corners == expected).all(dim=-1).any(dim=0).all(), "one cell of each window of one corner"


@pytest.mark.parametrize("case", ["a", "b"])
def test_positions(golden: Path, case: str) -> None:
    file = read(golden / "flsl" / "sincos.npz")
    params = file.params
    assert params["base"] == 10000
    side = params[f"{case}_grid"]
    ours = sincos_table(params[f"{case}_embed_dim"], (side, side))
    assert (ours - file[f"out_pos_{case}"]).abs().max() <= params["tolerance"]


@pytest.mark.parametrize("geometry", ["true", "squashed"])
def test_cells_inside_boxes(golden: Path, geometry: str) -> None:
    file = read(golden / "flsl" / "bbox_cells.npz")
    params = file.params
    place, suffix = (boxes_in_square, "_correct") if geometry == "true" else (boxes_in_squashed_square, "")
    visible = file["out_visible_correct"] if geometry == "true" else torch.ones(len(file["in_boxes"]), dtype=torch.bool)
    for image, (width, height) in enumerate(file["in_image_size"].tolist()):
        boxes = file["in_boxes"][image, : file["in_num_boxes"][image]].double()
        moved = place(boxes, (height, width), params["resize"], params["crop"])
        cells, largest, seen = largest_box_cells(moved, params["crop"], params["grid"], params["points"])
        if geometry == "true":
            assert seen == visible[image]
        if visible[image]:
            clear = file[f"out_margin{suffix}"][image] >= (0.005 if geometry == "true" else 1.001e-4)
            assert largest == file[f"out_box_index{suffix}"][image]
            assert cells[clear].equal(file[f"out_ids{suffix}"][image][clear])


def test_knn_of_points_inside_boxes(golden: Path) -> None:
    file = read(golden / "flsl" / "bbox_knn.npz")
    train, test = (file[f"in_{part}_features"] for part in ("train", "test"))
    train_labels, test_labels = (file[f"in_{part}_labels"] for part in ("train", "test"))
    ks = file["in_k"].tolist()
    accuracy, predictions = point_accuracy(
        train, train_labels, test, test_labels, tuple(ks), file.params["temperature"]
    )
    for place, k in enumerate(ks):
        assert predictions[k].equal(file["out_predictions"][place])
        for name, expected in (("top1", file["out_top1"]), ("top5", file["out_top5_once"])):
            ours = torch.tensor(accuracy[f"{name}_k{k}"])
            assert relative_error(ours, expected[place]) <= file.params["tolerance"]
