import torch

from asterism.ops.random import fold_each
from asterism.ops.window_sampling import sample_windows, window_cells

KEYS = fold_each(torch.arange(4000), 3)


def test_windows_tile_the_covered_rectangle_in_each_corner() -> None:
    grid, window = (5, 8), 3
    cells = window_cells(grid, window)
    assert cells.shape == (4, 1 * 2, 9)
    for corner, (top, left) in enumerate([(0, 0), (0, 2), (2, 0), (2, 2)]):
        for number in range(2):
            expected = [(top + i) * 8 + left + 3 * number + j for i in range(3) for j in range(3)]
            assert cells[corner, number].tolist() == expected


def test_fixed_sampling_takes_the_first_cell() -> None:
    picked = sample_windows(KEYS[:50], (6, 6), 2, "fixed")
    assert picked.unique(dim=0).tolist() == [[0, 2, 4, 12, 14, 16, 24, 26, 28]]


def test_random_sampling_is_uniform_over_corners_and_cells() -> None:
    grid, window = (4, 4), 3
    picked = sample_windows(KEYS, grid, window)[:, 0]
    cells = window_cells(grid, window)[:, 0]
    expected = torch.bincount(cells.flatten(), minlength=16) / cells.numel()
    observed = torch.bincount(picked, minlength=16) / len(KEYS)
    assert (observed - expected).abs().max() < 5 * (0.11 * 0.89 / len(KEYS)) ** 0.5
    pairs = sample_windows(KEYS, (4, 4), 2)
    joint = torch.bincount((pairs[:, 0] // 4 * 2 + pairs[:, 0] % 4) * 16 + pairs[:, 3], minlength=64)
    used = joint[joint > 0]
    assert len(used) == 16, "windows are drawn independently"
    assert (used / len(KEYS) - 1 / 16).abs().max() < 0.02


def test_a_sample_depends_on_its_key_alone() -> None:
    whole = sample_windows(KEYS[:8], (7, 7), 2)
    assert whole[5:6].equal(sample_windows(KEYS[5:6], (7, 7), 2))
    assert not whole[0].equal(whole[1])
