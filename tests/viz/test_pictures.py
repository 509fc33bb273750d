import pytest
import torch

from asterism.viz import pictures


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
