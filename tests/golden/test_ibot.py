"""iBOT: masks and losses against the golden vectors."""

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import ndimage
from torch import Tensor

from asterism.nn.center import Center
from asterism.ops.block_masks import block_masks, draw_ratios
from asterism.ops.losses import cross_entropy, cross_view_loss, masked_rows_mean, soft_targets
from asterism.ops.random import fold
from tests.golden.vectors import Vectors, read, relative_error


@pytest.fixture(scope="module")
def statistics(golden: Path) -> Vectors:
    return read(golden / "ibot" / "block_mask.npz")


@pytest.mark.parametrize("row", [0, 1])
def test_block_masks(statistics: Vectors, row: int) -> None:
    v, p = statistics, statistics.params
    kind = ["fixed", "mixture"][row]
    ratios, spreads = [
        ((p["fixed_ratio"],), (0.0,)),
        ((p["mixture_ratio_a"], p["mixture_ratio_b"]), (p["mixture_spread_a"], p["mixture_spread_b"])),
    ][row]
    grid = (p["grid"], p["grid"])
    keys = torch.tensor([fold(20 + row, i) for i in range(p["assumed_test_masks"])])
    shares = draw_ratios(keys, ratios, spreads)
    masks = block_masks(torch.tensor([fold(30 + row, i) for i in range(len(keys))]), grid, shares)
    fraction = masks.double().mean(dim=1)
    some = fraction[fraction > 0]
    assert abs(float(fraction.mean() - v["out_mean_fraction"][row])) <= p[f"tol_mean_fraction_{kind}"]
    assert abs(float((fraction == 0).double().mean() - v["out_share_empty"][row])) <= p[f"tol_share_empty_{kind}"]
    assert float(fraction.max()) <= float(v["out_max_fraction"][row]) + 1e-6
    quantiles = np.quantile(some.numpy(), v["in_quantile_levels"].numpy())
    assert np.abs(quantiles - v["out_quantiles"][row].numpy()).max() <= p[f"tol_quantile_{kind}"]
    cells = masks.double().mean(dim=0).view(grid)
    assert float((cells - v["out_cell_frequency"][row]).abs().max()) <= p["tol_cell_frequency"]
    components = _components(masks.view(-1, *grid))
    assert abs(components - float(v["out_mean_components"][row])) <= p[f"tol_mean_components_{kind}"]


def _components(masks: Tensor) -> float:
    """Mean number of 4-connected parts."""
    return float(np.mean([ndimage.label(mask)[1] for mask in masks.numpy()]))


def test_loss(golden: Path) -> None:
    v = read(golden / "ibot" / "loss.npz")
    p, tolerance = v.params, v.params["tolerance"]
    names = ("student_cls", "student_local_cls", "student_patch")
    large, small, patches = (v[f"in_{name}"].clone().requires_grad_() for name in names)
    center = _center(v["in_center"], p["center_momentum"])
    patch_center = _center(v["in_center_patch"], p["center_momentum_patch"])

    views = [x.unflatten(0, (count, p["batch"])) for x, count in _views(large, small, p)]
    teacher = v["in_teacher_cls"].unflatten(0, (p["num_global_views"], -1))
    targets = soft_targets(teacher, center.value, p["teacher_temp"])
    cls = cross_view_loss(targets, torch.cat(views), p["student_temp"])

    mask = v["in_mask"].flatten(1)
    words = soft_targets(v["in_teacher_patch"][mask], patch_center.value, p["teacher_patch_temp"])
    patch = masked_rows_mean(cross_entropy(words, patches[mask], p["student_temp"]), mask)
    total = p["weight_cls"] * cls + p["weight_patch"] * patch
    total.backward()

    # The golden terms already include their weights.
    assert relative_error(p["weight_cls"] * cls.detach(), v["out_loss_cls"]) <= tolerance
    assert relative_error(p["weight_patch"] * patch.detach(), v["out_loss_patch"]) <= tolerance
    assert relative_error(total.detach(), v["out_total"]) <= tolerance
    for name, leaf in zip(names, (large, small, patches), strict=True):
        gradient = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
        assert relative_error(gradient, v[f"out_grad_{name}"]) <= tolerance

    center.accumulate(v["in_teacher_cls"])
    center.update()
    assert relative_error(center.value[None], v["out_center"]) <= tolerance
    patch_center.accumulate(v["in_teacher_patch"].mean(dim=1))
    patch_center.update()
    assert relative_error(patch_center.value[None], v["out_center_patch"]) <= tolerance


def _views(large: Tensor, small: Tensor, p: dict[str, int]) -> list[tuple[Tensor, int]]:
    both = [(large, p["num_global_views"]), (small, p["num_local_views"])]
    return [(x, count) for x, count in both if count]


def _center(value: Tensor, momentum: float) -> Center:
    center = Center(value.shape[-1], momentum)
    center.value.copy_(value.flatten())
    return center
