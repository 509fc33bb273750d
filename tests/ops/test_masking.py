import math

import pytest
import torch

from asterism.ops.masking import (
    FocusConfig,
    draw_focus,
    focus_noise,
    keep_count,
    keep_from_noise,
    mask_from_keep,
    random_keep,
    removed_from_keep,
)
from asterism.ops.random import fold_each


@pytest.mark.parametrize(("patches", "ratio", "kept"), [(196, 0.75, 49), (100, 0.8, 19), (196, 0.6, 78), (4, 0.8, 0)])
def test_counts_are_truncated_in_double_precision(patches: int, ratio: float, kept: int) -> None:
    assert keep_count(patches, ratio) == kept


def test_the_smallest_noise_stays_in_ascending_order() -> None:
    noise = torch.tensor([[0.5, 0.1, 0.9, 0.1, 0.3], [0.0, 0.2, 0.4, 0.3, 0.1]])
    keep = keep_from_noise(noise, 0.4)
    assert keep.tolist() == [[1, 3, 4], [0, 4, 1]]  # ties: the earlier patch first
    assert mask_from_keep(keep, 5).tolist() == [[True, False, True, False, False], [False, False, True, True, False]]


def test_removed_patches_are_those_not_kept() -> None:
    keep = torch.tensor([[5, 0, 2], [1, 3, 4]])
    assert removed_from_keep(keep, 6).tolist() == [[1, 3, 4], [0, 2, 5]]


def test_the_kept_patches_depend_on_the_key_alone() -> None:
    keys = fold_each(torch.arange(64), 3)
    keep = random_keep(keys, 49, 0.75)
    assert keep.shape == (64, 12)
    assert random_keep(keys[5:9], 49, 0.75).equal(keep[5:9])
    assert all(len(set(row)) == 12 for row in keep.tolist())
    assert not keep[0].equal(keep[1])


def test_every_patch_is_kept_equally_often() -> None:
    images, patches = 4000, 16
    kept = ~mask_from_keep(random_keep(torch.arange(images), patches, 0.75), patches)
    deviation = (0.25 * 0.75 / images) ** 0.5
    assert kept.float().mean(dim=0).sub(0.25).abs().max() < 5 * deviation


def test_focus_against_loops() -> None:
    rows, columns = 3, 5
    keys = fold_each(torch.arange(6), 9)
    focus = draw_focus(keys, (rows, columns), FocusConfig())
    noise = torch.rand(6, rows * columns, generator=torch.Generator().manual_seed(0))
    expected = noise.clone()
    for image in range(6):
        for row in range(rows):
            for column in range(columns):
                d2 = (row - int(focus.centre[image, 0])) ** 2 + (column - int(focus.centre[image, 1])) ** 2
                bell = math.exp(-d2 / (2 * (float(focus.sigma[image]) * columns) ** 2))
                expected[image, row * columns + column] -= bell * bool(focus.active[image])
    torch.testing.assert_close(focus_noise(noise, (rows, columns), focus), expected)
    assert 0 < focus.active.sum() < 6


def test_focus_draws_every_cell_and_stays_in_its_ranges() -> None:
    focus = draw_focus(torch.arange(2000), (3, 5), FocusConfig(probability=0.25))
    assert focus.centre.unique(dim=0).shape == (15, 2)
    assert focus.centre.amin() == 0
    assert focus.centre.amax(dim=0).tolist() == [2, 4]
    assert 0.1 <= focus.sigma.min() < focus.sigma.max() <= 0.5
    assert abs(focus.active.float().mean() - 0.25) < 5 * (0.25 * 0.75 / 2000) ** 0.5
