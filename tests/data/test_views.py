import pytest
import torch

from asterism.data.views import Views
from asterism.ops.geometry import geometry_from_rows, patch_centers
from asterism.types import ColorJitter, ViewSpec
from tests.data.photographs import photograph

COLORFUL = {"jitter": ColorJitter(), "grayscale": 0.2, "blur": 0.5, "solarize": 0.3}
SPECS = [
    ViewSpec(size=32, **COLORFUL),
    ViewSpec(size=32, same_place=0, **COLORFUL),
    ViewSpec(size=16, scale=(0.3, 0.8), inside=0, **COLORFUL),
    ViewSpec(size=8, scale=(0.05, 0.25), **COLORFUL),
]


@pytest.mark.parametrize(("height", "width"), [(8, 8), (1, 1), (3, 400), (400, 3)])
def test_tiny_long_and_grey_images(height: int, width: int) -> None:
    views = Views(SPECS)
    picture = torch.randint(0, 256, (1, height, width), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    for key in range(20):
        parameters = views.sample([(height, width)], [key])
        for crop in views.apply([picture.expand(3, -1, -1)], parameters):
            spread = crop.int().amax(1) - crop.int().amin(1)
            assert spread.max() <= 1  # grey stays grey
        assert views.apply_labels([picture[0]], parameters) == []  # none was requested


def test_the_views_of_an_image_are_the_same_in_any_batch() -> None:
    views = Views([*SPECS, ViewSpec(size=16, segments=True)])
    pictures = [photograph(seed, 20 + 7 * seed, 90 - 5 * seed) for seed in range(12)]
    labels = [picture[0] for picture in pictures]
    parameters = views.sample([(picture.shape[1], picture.shape[2]) for picture in pictures], range(12))
    made, cut, geometry = (
        views.apply(pictures, parameters),
        views.apply_labels(labels, parameters),
        views.geometry(parameters),
    )
    for place, picture in enumerate(pictures):
        alone = views.sample([(picture.shape[1], picture.shape[2])], [place])
        assert alone == [parameters[place]]
        for several, one in zip(
            [*made, *cut], [*views.apply([picture], alone), *views.apply_labels([labels[place]], alone)], strict=True
        ):
            assert torch.equal(several[place], one[0])
        assert torch.equal(geometry[:, place], views.geometry(alone)[:, 0])


def test_a_nested_view_is_cut_from_the_original_pixels() -> None:
    """Detail lost at the parent's low resolution is preserved in the child."""
    checkers = (torch.arange(64)[:, None] + torch.arange(64)) % 2 * 255
    picture = checkers.to(torch.uint8).expand(3, -1, -1)
    views = Views([ViewSpec(size=8, scale=(1, 1)), ViewSpec(size=32, scale=(0.1, 0.1), inside=0)])
    parent, child = views.apply([picture], views.sample([(64, 64)], [0]))
    assert parent.float().std() < 10
    assert child.float().std() > 60


def test_geometry_says_where_the_pixels_came_from() -> None:
    """In an image whose red and green encode column and row, the mean of a patch is the position of its centre."""
    height, width, grid = 200, 240, 4
    columns, rows = torch.arange(width).expand(height, width), torch.arange(height)[:, None].expand(height, width)
    picture = torch.stack((columns, rows, rows)).to(torch.uint8)
    views = Views([ViewSpec(size=32, scale=(0.1, 0.6)), ViewSpec(size=64, scale=(0.5, 1), inside=0)])
    flips = set()
    for key in range(12):
        parameters = views.sample([(height, width)], [key])
        geometry = geometry_from_rows(views.geometry(parameters)[:, 0])
        flips.update(geometry.flip.tolist())
        centers = patch_centers(geometry, (grid, grid))
        for crop, expected in zip(views.apply([picture], parameters), centers, strict=True):
            seen = torch.nn.functional.adaptive_avg_pool2d(crop[0, :2].float(), grid).flatten(1).T
            torch.testing.assert_close(seen, expected, rtol=0, atol=0.6)
    assert flips == {True, False}


def test_labels_agree_with_the_geometry() -> None:
    labels = torch.arange(60 * 80).reshape(60, 80)
    asking = ViewSpec(size=16, segments=True)
    views = Views([asking, ViewSpec(size=16), asking.model_copy(update={"scale": (0.05, 0.2)})])
    for key in range(8):
        parameters = views.sample([(60, 80)], [key])
        centers = patch_centers(geometry_from_rows(views.geometry(parameters)[:, 0]), (16, 16))[[0, 2]]
        for cut, points in zip(views.apply_labels([labels], parameters), centers, strict=True):
            x, y = points.add(0.5 + 1e-4).floor().long().unbind(-1)  # centres between two pixels take the next one
            assert torch.equal(cut[0].flatten(), labels[y, x])
