import torch

from asterism.ops.box_cells import boxes_in_square, boxes_in_squashed_square, largest_box_cells


def _whole(height: int, width: int) -> torch.Tensor:
    return torch.tensor([[0.0, 0.0, width, height]], dtype=torch.float64)


def test_boxes_follow_the_resize_and_the_crop() -> None:
    moved = boxes_in_square(_whole(50, 100), (50, 100), resize=16, crop=12)
    assert moved.tolist() == [[-10.0, -2.0, 22.0, 14.0]]  # 16 × 32, of which columns 10 … 22 and rows 2 … 14 stay
    squashed = boxes_in_squashed_square(_whole(50, 100), (50, 100), resize=16, crop=12)
    assert squashed.tolist() == [[-2.0, -2.0, 14.0, 14.0]]


def test_cells_are_at_the_centres_of_equal_parts() -> None:
    box = torch.tensor([[2.0, 4.0, 8.0, 10.0]])  # centres at 3, 5, 7 and 5, 7, 9 of 12 pixels, patches of 2
    cells, largest, seen = largest_box_cells(box, crop=12, grid=6, points=3)
    assert cells.tolist() == [2 * 6 + 1, 2 * 6 + 2, 2 * 6 + 3, 19, 20, 21, 25, 26, 27]
    assert (largest, seen) == (0, True)


def test_the_largest_visible_part_counts() -> None:
    boxes = torch.tensor([[-50.0, -50.0, 2.0, 2.0], [4.0, 4.0, 8.0, 8.0], [20.0, 20.0, 90.0, 90.0]])
    cells, largest, seen = largest_box_cells(boxes, crop=12, grid=3, points=1)
    assert (cells.tolist(), largest, seen) == ([4], 1, True)


def test_a_box_outside_the_crop_is_not_visible() -> None:
    cells, _, seen = largest_box_cells(torch.tensor([[20.0, 20.0, 30.0, 30.0]]), crop=12, grid=3, points=2)
    assert not seen
    assert cells.tolist() == [8] * 4, "the nearest patch"
