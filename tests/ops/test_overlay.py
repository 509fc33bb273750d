from __future__ import annotations

import torch

from asterism.ops.overlay import label_colors, spotlight, tint


def test_colours_of_many_labels_differ() -> None:
    colors = label_colors(64)
    assert colors.min() >= 0
    assert colors.max() <= 1
    assert torch.pdist(colors).min() > 0.01
    assert torch.pdist(colors[:8]).min() > 0.3


def test_patches_of_one_label_share_a_tint_and_unlabelled_ones_are_dark() -> None:
    images = torch.full((1, 3, 4, 6), 0.8)
    drawn = tint(images, torch.tensor([[[0, 1, 0], [-1, 1, 2]]]))[0]
    cells = drawn[:, ::2, ::2].flatten(1).T
    assert cells[0].equal(cells[2])
    assert cells[1].equal(cells[4])
    assert torch.pdist(cells[[0, 1, 5]]).min() > 0.1
    torch.testing.assert_close(cells[3], torch.full((3,), 0.24))
    assert drawn[:, :2, :2].flatten(1).unique(dim=1).shape[1] == 1, "a patch is two pixels wide"


def test_only_the_region_is_highlighted() -> None:
    images = torch.rand(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    lit = spotlight(images, torch.tensor([[[True, False], [False, False]], [[False, False], [False, True]]]))
    assert lit[0, :, :2, :2].equal(images[0, :, :2, :2])
    assert lit[1, :, 2:, 2:].equal(images[1, :, 2:, 2:])
    torch.testing.assert_close(lit[0, 1, 2:], 0.3 * images[0].mean(dim=0)[2:])
