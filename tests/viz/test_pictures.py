from __future__ import annotations

import pytest
import torch

from asterism.viz import pictures
from asterism.viz.pictures import captioned


def test_equal_tokens_get_equal_colours_and_different_ones_do_not():
    generator = torch.Generator().manual_seed(0)
    kinds = torch.randn(4, 16, generator=generator)
    which = torch.randint(4, (2, 9), generator=generator)
    colors = pictures.principal_colors(kinds[which], (3, 3), 6)
    assert colors.shape == (2, 3, 6, 6)
    cells = colors[:, :, ::2, ::2].flatten(2).transpose(1, 2).flatten(0, 1)
    for first in range(4):
        members = cells[which.flatten() == first]
        assert (members == members[0]).all()
    assert len(cells.unique(dim=0)) == len(which.unique())


def test_the_mean_over_images_at_a_position_is_removed():
    generator = torch.Generator().manual_seed(0)
    content, place = torch.randn(5, 6, 4, generator=generator), torch.randn(6, 4, generator=generator)
    torch.testing.assert_close(
        pictures.without_place(content + 10 * place), pictures.without_place(content), atol=1e-5, rtol=0
    )


def test_a_patch_is_most_similar_to_itself():
    patches = torch.randn(3, 6, 8, generator=torch.Generator().manual_seed(0))
    maps = pictures.similarity_maps(patches, (2, 3), torch.tensor([0, 4, 5]))
    assert maps.shape == (3, 2, 3)
    assert maps.flatten(1).argmax(dim=1).tolist() == [0, 4, 5]
    assert maps.flatten(1).max(dim=1).values.tolist() == pytest.approx([1, 1, 1])


def test_heat_is_brightest_where_the_map_is_largest():
    maps = torch.zeros(1, 4, 4)
    maps[0, 1, 2] = 1
    drawn = pictures.heat(maps, torch.full((1, 3, 16, 16), 128, dtype=torch.uint8)).float().sum(dim=1)[0]
    row, column = divmod(int(drawn.argmax()), 16)
    assert 4 <= row < 8
    assert 8 <= column < 12


@pytest.mark.parametrize(
    ("size", "picture"), [((3000, 6000), (1024, 2048)), ((40, 20), (400, 200)), ((500, 400), (500, 400))]
)
def test_captioned_pictures_are_neither_too_small_nor_too_large(
    size: tuple[int, int], picture: tuple[int, int]
) -> None:
    found = captioned(torch.full((3, *size), 90, dtype=torch.uint8), "blue 33%")
    assert found.shape[2] == picture[1]
    assert picture[0] < found.shape[1] <= picture[0] + 2 * max(16, min(picture) // 12)
    assert (found[:, : picture[0] - 1] == 90).all()
