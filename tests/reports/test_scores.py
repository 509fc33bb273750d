from asterism.reports.scores import in_words, value_in_words


def test_values_are_named_in_words() -> None:
    assert in_words("knn", "top1_k20") == "k-NN accuracy, k = 20 (%)"
    assert in_words("dense-nn", "miou_patches_1of4") == (
        "nearest-patch segmentation mIoU of patches, 1/4 of the training images (%)"
    )
    assert value_in_words("map_roxford5k_hard") == "mAP (%), roxford5k hard"
    assert value_in_words("mp10_medium") == "precision at 10 (%), medium"
    assert value_in_words("iou/traffic_light") == "IoU of traffic light (%)"
    assert value_in_words("top1_mixed_rand") == "accuracy on mixed rand (%)"


def test_what_has_no_words_keeps_its_name() -> None:
    assert in_words("my-protocol", "some_value") == "my-protocol some value"
