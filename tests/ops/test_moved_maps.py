import torch

from asterism.evals.equivariance import moved, overlap, zoom


def test_a_zoom_shows_the_middle() -> None:
    maps = torch.zeros(1, 1, 4, 4)
    maps[..., 1:3, 1:3] = 1
    found, seen = moved(maps, zoom(2))
    assert seen.all()
    assert (found[..., 1:3, 1:3] == 1).all()
    assert (found > 0.5).all()  # cells at the border of the middle are mixed with their neighbours outside


def test_overlap_is_one_for_equal_maps_and_zero_for_strangers() -> None:
    first = torch.tensor([1.0, 0.0]).view(1, 2, 1, 1).expand(1, 2, 2, 2)
    every = torch.ones(2, 2, dtype=torch.bool)
    assert overlap(first, first, every).item() == 1
    assert overlap(first, first.flip(1), every).item() == 0
    half = torch.full((1, 2, 2, 2), 0.5)
    assert overlap(first, half, every).item() == 0.5


def test_only_counted_cells_matter() -> None:
    first = torch.tensor([1.0, 0.0]).view(1, 2, 1, 1).repeat(1, 1, 1, 2)
    second = first.clone()
    second[..., 1] = second[..., 1].flip(1)
    assert overlap(first, second, torch.tensor([[True, False]])).item() == 1
    assert overlap(first, second, torch.tensor([[True, True]])).item() == 0.5
