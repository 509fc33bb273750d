import torch

from asterism.methods.parts.labelled_objects import label_sets, labels_of_patches, largest_regions


def test_labelled_regions_by_size() -> None:
    segments = torch.tensor([[7, 7, 9, 9], [7, 7, 9, 3], [7, 5, -1, 9], [7, 7, 9, 9]])[None]
    patches = labels_of_patches(segments, (2, 2))  # the pixel below and to the right of each patch's centre
    assert patches.tolist() == [[7, 3, 7, 9]]
    labels = torch.tensor([[30, 2, 30, -1, 30, 9, 2, 40, 9, -5], [-1] * 9 + [0]])
    assert largest_regions(labels, 3).tolist() == [[0, 1, 0, -1, 0, 2, 1, -1, 2, -1], [-1] * 9 + [0]]
    assert largest_regions(labels, 9)[0, 7] == 3


def test_only_equal_sets_of_labels_get_equal_numbers() -> None:
    clusters = torch.tensor([[[0, 0, 1, 2], [0, 1, 2, -1]], [[1, 3, 2, 0], [0, 1, 2, 2]]])
    labels = torch.tensor([[[5, 8, 8, 5], [6, 5, 7, 7]], [[5, 9, 8, 8], [6, 5, 7, 6]]])
    sets = label_sets(clusters, labels, 4)
    # First image: {5, 8}, {8, 5} in the other order, {5, 8}, {9}; second image: {6}, {5}, {7, 6}, nothing.
    assert sets[0, 0] == sets[0, 1] == sets[0, 2]
    assert len(sets.flatten().unique()) == 6
    assert sets[1, 3] == 0
