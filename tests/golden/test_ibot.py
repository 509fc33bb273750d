"""iBOT: masks and losses against the golden vectors."""

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import ndimage
from torch import Tensor

from asterism.ops.block_masks import block_masks, draw_ratios
from asterism.ops.random import fold
from tests.golden.vectors import Vectors, read


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
