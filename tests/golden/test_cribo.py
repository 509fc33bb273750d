from __future__ import annotations

from pathlib import Path

import torch

from asterism.ops.geometry import geometry_from_rows, patch_centers
from tests.golden.vectors import read


def test_positions(golden: Path) -> None:
    vectors = read(golden / "cribo" / "positions.npz")
    rows = torch.cat((vectors["in_crop"], vectors["in_image_size"], vectors["in_flip"][:, None]), dim=1).float()
    grid = vectors.params["grid"]
    ours = patch_centers(geometry_from_rows(rows), (grid, grid))
    for name in ("out_positions", "out_positions_closed_form"):
        assert ours.shape == vectors[name].shape
        assert (ours - vectors[name]).abs().max() <= vectors.params["tolerance"], name
