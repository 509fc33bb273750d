import pytest
import torch

from asterism.ops.masking import keep_count, keep_from_noise, mask_from_keep, random_keep
from asterism.ops.random import fold_each


@pytest.mark.parametrize(("patches", "ratio", "kept"), [(196, 0.75, 49), (100, 0.8, 19), (196, 0.6, 78), (4, 0.8, 0)])
def test_counts_are_truncated_in_double_precision(patches: int, ratio: float, kept: int) -> None:
    assert keep_count(patches, ratio) == kept


def test_the_smallest_noise_stays_in_ascending_order() -> None:
    noise = torch.tensor([[0.5, 0.1, 0.9, 0.1, 0.3], [0.0, 0.2, 0.4, 0.3, 0.1]])
    keep = keep_from_noise(noise, 0.4)
    assert keep.tolist() == [[1, 3, 4], [0, 4, 1]]  # ties: the earlier patch first
    assert mask_from_keep(keep, 5).tolist() == [[True, False, True, False, False], [False, False, True, True, False]]


def test_what_an_image_keeps_depends_on_its_key_alone() -> None:
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
