"""Masks of iBOT and SOP: ours, as the published loop over patches, and with tensor operations for the whole batch.

    python -m lab.benchmarks.block_masks --images 64

All three draw from the same distribution, on the CPU. The forms run alternately, and the best of each counts.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from asterism.ops.block_masks import block_masks
from asterism.ops.random import fold, fold_each, uniform

GRIDS = ((4, 4), (7, 7), (14, 14))
RATIOS = (0.1, 0.5)
REPEATS = 20
LOG_ASPECT = math.log(1 / 0.3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=64)
    images = parser.parse_args().images
    torch.set_num_threads(1)
    keys = torch.tensor([fold(0, number) for number in range(images)])
    ratios = torch.linspace(*RATIOS, images, dtype=torch.float64)
    for grid in GRIDS:
        forms: dict[str, Callable[[], object]] = {
            "asterism": lambda grid=grid: block_masks(keys, grid, ratios),
            "loop over patches": lambda grid=grid: [patch_loop(grid, ratio) for ratio in ratios.tolist()],
            "tensors": lambda grid=grid: tensor_masks(keys, grid, ratios),
        }
        best = dict.fromkeys(forms, math.inf)
        for _ in range(REPEATS):
            for name, form in forms.items():
                start = time.perf_counter()
                form()
                best[name] = min(best[name], time.perf_counter() - start)
        print(f"{images} masks of {grid[0]} × {grid[1]} patches")
        for name, seconds in best.items():
            print(f"  {name:20}{1e3 * seconds:8.2f} ms  {seconds / best['asterism']:5.1f}×")


def patch_loop(grid: tuple[int, int], ratio: float) -> np.ndarray:
    """The published algorithm, patch by patch."""
    height, width = grid
    mask, target, failures = np.zeros(grid, dtype=bool), ratio * height * width, 0
    while mask.sum() < target and failures < 10:
        missing = target - mask.sum()
        area = random.uniform((min(grid) // 3) ** 2, missing)
        aspect = math.exp(random.uniform(-LOG_ASPECT, LOG_ASPECT))
        rows, columns = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        failures += 1
        if rows < height and columns < width:
            top, left = random.randint(0, height - rows), random.randint(0, width - columns)
            new = (~mask[top : top + rows, left : left + columns]).sum()
            if 0 < new <= missing:
                for row in range(top, top + rows):
                    for column in range(left, left + columns):
                        mask[row, column] = True
                failures = 0
    return mask


def tensor_masks(keys: Tensor, grid: tuple[int, int], ratios: Tensor) -> Tensor:
    """One rectangle per image at a time, for all images together."""
    height, width = grid
    target, smallest = ratios * height * width, (min(grid) // 3) ** 2
    mask = torch.zeros(len(keys), height, width, dtype=torch.bool)
    failures, attempt = torch.zeros(len(keys), dtype=torch.int64), 0
    row, column = torch.arange(height)[:, None], torch.arange(width)
    while (active := (mask.sum(dim=(1, 2)) < target) & (failures < 10)).any():
        missing = target - mask.sum(dim=(1, 2))
        area, aspect, down, across = uniform(fold_each(keys, attempt), 4).unbind(dim=1)
        area = (smallest + (missing - smallest) * area).clamp_min(0)
        aspect = torch.exp(LOG_ASPECT * (2 * aspect - 1))
        rows, columns = (area * aspect).sqrt().round().long(), (area / aspect).sqrt().round().long()
        top = (down * (height - rows + 1).clamp_min(1)).long()
        left = (across * (width - columns + 1).clamp_min(1)).long()
        top, left, rows, columns = (side[:, None, None] for side in (top, left, rows, columns))
        inside = (row >= top) & (row < top + rows) & (column >= left) & (column < left + columns)
        added = (inside & ~mask).sum(dim=(1, 2))
        fits = ((rows < height) & (columns < width)).flatten()
        good = active & fits & (added > 0) & (added <= missing)
        mask |= inside & good[:, None, None]
        failures = torch.where(good, 0, failures + 1)
        attempt += 1
    return mask.flatten(1)


if __name__ == "__main__":
    main()
