import math
import random

import pytest
import torch
from torch import Tensor

from asterism.errors import UserError
from asterism.ops.block_masks import MaskConfig, block_masks, draw_masks, draw_ratios, random_masks
from asterism.ops.random import fold


def keys(count: int, seed: int = 0) -> Tensor:
    return torch.tensor([fold(seed, i) for i in range(count)])


def slow_block_mask(draws: random.Random, height: int, width: int, ratio: float) -> list[list[bool]]:
    """A literal version of the published loop, for statistics."""
    mask = [[False] * width for _ in range(height)]
    target, masked, failures = ratio * height * width, 0, 0
    while masked < target and failures < 10:
        smallest, missing = (min(height, width) // 3) ** 2, target - masked
        area, aspect = draws.uniform(smallest, missing), math.exp(draws.uniform(math.log(0.3), math.log(1 / 0.3)))
        h, w = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        failures += 1
        if h >= height or w >= width:
            continue
        top, left = draws.randint(0, height - h), draws.randint(0, width - w)
        cells = [(i, j) for i in range(top, top + h) for j in range(left, left + w) if not mask[i][j]]
        if 0 < len(cells) <= missing:
            for i, j in cells:
                mask[i][j] = True
            masked, failures = masked + len(cells), 0
    return mask


@pytest.mark.parametrize(("grid", "ratio"), [((8, 6), 0.4), ((4, 4), 0.3), ((7, 7), 0.7)])
def test_block_masks_have_the_statistics_of_the_slow_loop(grid: tuple[int, int], ratio: float) -> None:
    count = 2000
    ours = block_masks(keys(count), grid, torch.full((count,), ratio, dtype=torch.float64)).float().view(count, *grid)
    draws = random.Random(1)
    slow = torch.tensor([slow_block_mask(draws, *grid, ratio) for _ in range(count)]).float()
    sizes, slow_sizes = ours.sum(dim=(1, 2)), slow.sum(dim=(1, 2))
    error = ((sizes.var() + slow_sizes.var()) / count).sqrt()
    assert (sizes.mean() - slow_sizes.mean()).abs() < 5 * error + 1e-6
    cell_error = (2 * 0.25 / count) ** 0.5
    assert (ours.mean(dim=0) - slow.mean(dim=0)).abs().max() < 5 * cell_error


def test_no_more_patches_are_masked_than_the_ratio_allows() -> None:
    ratios = torch.linspace(0, 0.9, 200, dtype=torch.float64)
    masks = block_masks(keys(200), (9, 7), ratios)
    assert (masks.sum(dim=1) <= ratios * 63).all()
    assert masks[0].sum() == 0
    assert (masks[100:].sum(dim=1) > 10).all()


def test_an_images_mask_does_not_depend_on_the_batch() -> None:
    all_keys, ratios = keys(20), torch.linspace(0.1, 0.6, 20, dtype=torch.float64)
    for draw in (block_masks, random_masks):
        whole = draw(all_keys, (6, 6), ratios)
        alone = torch.cat([draw(all_keys[i : i + 1], (6, 6), ratios[i : i + 1]) for i in range(20)])
        assert torch.equal(whole, alone)
        assert not torch.equal(whole, draw(keys(20, seed=1), (6, 6), ratios))


@pytest.mark.parametrize("ratio", [0.0, 0.1, 0.29, 0.3, 0.7, 0.75, 1.0])
def test_random_masks_have_an_exact_size(ratio: float) -> None:
    for grid in [(5, 2), (14, 14), (3, 7), (10, 10)]:
        masks = random_masks(keys(50), grid, torch.full((50,), ratio, dtype=torch.float64))
        assert masks.sum(dim=1).unique().tolist() == [int(ratio * grid[0] * grid[1])]


def test_ratios_are_a_mixture_of_ranges() -> None:
    ratios = draw_ratios(keys(4000), (0.0, 0.3), (0.0, 0.2))
    some = ratios[ratios > 0]
    assert abs(len(some) / 4000 - 0.5) < 5 * (0.25 / 4000) ** 0.5
    assert 0.1 <= some.min() < 0.11
    assert 0.49 < some.max() <= 0.5
    assert abs(float(some.mean()) - 0.3) < 5 * 0.4 / 12**0.5 / len(some) ** 0.5


def test_shapes_have_the_published_ratios_by_default() -> None:
    assert MaskConfig().mixture == ((0.0, 0.3), (0.0, 0.2))
    assert MaskConfig(shape="random").mixture == ((0.7,), (0.0,))
    assert MaskConfig(ratios=(0.4,)).mixture == ((0.4,), (0.0,))
    masks = draw_masks(MaskConfig(shape="random"), keys(30), (10, 10))
    assert masks.sum(dim=1).unique().tolist() == [70]
    sizes = draw_masks(MaskConfig(), keys(200), (14, 14)).sum(dim=1)
    assert (sizes == 0).any()
    assert sizes.max() <= 98
    assert sizes.max() > 60


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"ratios": [0.1], "spreads": [0.2]}, "is outside"),
        ({"ratios": [0.9, 0.1], "spreads": [0.2]}, "one spread for each ratio"),
        ({"shape": "blocks"}, "shape"),
        ({"ratios": []}, "ratios is empty"),
    ],
)
def test_impossible_ratios_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        MaskConfig.parse(values)
