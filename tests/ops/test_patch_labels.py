import torch

from asterism.ops.patch_labels import class_counts, majority_labels, mode_labels, soft_labels

VOID = 9


def _patch(*labels: int) -> torch.Tensor:
    return torch.tensor(labels).view(1, 2, -1)


def test_rectangular_patches_are_counted_one_by_one() -> None:
    masks = torch.randint(4, (2, 6, 8), generator=torch.Generator().manual_seed(0))
    counts = class_counts(masks, (3, 2), 3, 3)
    assert counts.shape == (2, 2, 4, 4)
    for image in range(2):
        for row in range(2):
            for column in range(4):
                patch = masks[image, 3 * row : 3 * row + 3, 2 * column : 2 * column + 2]
                assert counts[image, row, column].tolist() == [int((patch == c).sum()) for c in range(4)]


def test_void_pixels_do_not_count_in_the_majority() -> None:
    counts = class_counts(_patch(VOID, VOID, VOID, 2), (2, 2), 3, VOID)
    assert majority_labels(counts, VOID).item() == 2
    assert mode_labels(counts, VOID).item() == VOID
    assert soft_labels(counts).flatten().tolist() == [0.75, 0.0, 0.25]


def test_ties_go_to_the_smallest_label_and_void_patches_stay_void() -> None:
    tie = class_counts(_patch(2, 1, 1, 2), (2, 2), 3, VOID)
    assert majority_labels(tie, VOID).item() == mode_labels(tie, VOID).item() == 1
    nothing = class_counts(_patch(VOID, VOID, VOID, VOID), (2, 2), 3, VOID)
    assert majority_labels(nothing, VOID).item() == VOID
