import pytest
import torch

from asterism.ops.geometry import geometry_from_rows, locate, patch_centers, project, to_image, to_view
from asterism.types import CropGeometry


def crops(count: int, seed: int = 0) -> CropGeometry:
    """Random crops of random images, about half of them flipped."""
    generator = torch.Generator().manual_seed(seed)
    u = torch.rand(count, 7, generator=generator)
    image = 50 + (u[:, :2] * 400).floor()
    sides = 1 + (u[:, 2:4] * (image - 1)).floor()
    corner = (u[:, 4:6] * (image - sides + 1)).floor()
    return geometry_from_rows(torch.cat((corner, sides, image, (u[:, 6:] < 0.5).float()), dim=1))


@pytest.mark.parametrize("grid", [(1, 1), (3, 5), (14, 14)])
def test_patch_centers_follow_the_formula(grid: tuple[int, int]) -> None:
    geometry = crops(8)
    centers = patch_centers(geometry, grid)
    for image in range(8):
        for row in range(grid[0]):
            for column in range(grid[1]):
                seen = grid[1] - 1 - column if geometry.flip[image] else column
                x = geometry.left[image] + (seen + 0.5) * geometry.width[image] / grid[1] - 0.5
                y = geometry.top[image] + (row + 0.5) * geometry.height[image] / grid[0] - 0.5
                expected = torch.stack((x, y))
                torch.testing.assert_close(centers[image, row * grid[1] + column], expected, rtol=0, atol=1e-3)


def test_to_view_undoes_to_image() -> None:
    geometry = crops(16)
    coordinates = torch.rand(16, 20, 2, generator=torch.Generator().manual_seed(1)) * 3 - 1
    torch.testing.assert_close(to_view(geometry, to_image(geometry, coordinates)), coordinates, rtol=0, atol=2e-3)


def test_the_corners_of_a_view_are_the_corners_of_its_crop() -> None:
    geometry = geometry_from_rows(torch.tensor([[10.0, 20, 60, 80, 200, 300, 0], [10, 20, 60, 80, 200, 300, 1]]))
    corners = to_image(geometry, torch.tensor([[[0.0, 0], [1, 1]]]).expand(2, -1, -1))
    assert corners[0].tolist() == [[19.5, 9.5], [99.5, 69.5]]
    assert corners[1].tolist() == [[99.5, 9.5], [19.5, 69.5]]


def test_points_outside_are_flagged_and_take_the_nearest_patch() -> None:
    geometry = geometry_from_rows(torch.tensor([[10.0, 20, 60, 80, 200, 300, 0]]))
    points = torch.tensor([[[19.4, 30.0], [19.6, 30], [99.4, 30], [99.6, 30], [50, 9.4], [50, 69.6], [500, 500]]])
    index, inside = locate(geometry, points, (3, 4))
    assert inside.tolist() == [[False, True, True, False, False, False, False]]
    assert index.tolist() == [[4, 4, 7, 7, 1, 9, 11]]


def test_projection_equals_a_search_over_the_cells_of_the_target() -> None:
    source, target = crops(24, seed=4), crops(24, seed=5)
    index, inside = project(source, target, (4, 3), (5, 6))
    points = patch_centers(source, (4, 3))
    found = 0
    for image in range(24):
        cell_height, cell_width = target.height[image] / 5, target.width[image] / 6
        for patch in range(12):
            x, y = points[image, patch] + 0.5
            matches = [
                row * 6 + (5 - column if target.flip[image] else column)
                for row in range(5)
                for column in range(6)
                if target.top[image] + row * cell_height <= y < target.top[image] + (row + 1) * cell_height
                and target.left[image] + column * cell_width <= x < target.left[image] + (column + 1) * cell_width
            ]
            assert bool(matches) == bool(inside[image, patch])
            if matches:
                found += 1
                assert matches == [int(index[image, patch])]
    assert found > 30
