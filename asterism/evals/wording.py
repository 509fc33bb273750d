"""What the values of the protocols are called in words, for tables that people read."""

from __future__ import annotations

import re

_PROTOCOLS = {
    "knn": "k-NN",
    "linear": "linear probe",
    "linear-sparse": "linear probe on concepts",
    "retrieval": "retrieval",
    "bbox-knn": "k-NN of boxes",
    "dense-nn": "nearest-patch segmentation",
    "linear-seg": "linear segmentation",
    "reconstruction": "reconstruction",
    "video": "video segmentation",
    "backgrounds": "backgrounds",
    "equivariance": "equivariance",
    "concept-purity": "concept purity",
    "mode-purity": "mode purity",
}

# The first pattern that matches a value's name; groups are inserted.
_VALUES = (
    (r"top1_k(\d+)", "accuracy, k = {} (%)"),
    (r"top5_k(\d+)", "top-5 accuracy, k = {} (%)"),
    (r"top1", "accuracy (%)"),
    (r"top5", "top-5 accuracy (%)"),
    (r"top1_kept_aside", "accuracy on held-out training images (%)"),
    (r"top1_(\w+)", "accuracy on {} (%)"),
    (r"background_gap", "gap between same and random backgrounds (points)"),
    (r"miou_(\w+?)_1of(\d+)", "mIoU of {}, 1/{} of the training images (%)"),
    (r"miou_(\w+)", "mIoU of {} (%)"),
    (r"miou", "mIoU (%)"),
    (r"macc", "mean class accuracy (%)"),
    (r"aacc", "pixel accuracy (%)"),
    (r"iou/(.+)", "IoU of {} (%)"),
    (r"map(?:_(.+))?", "mAP (%)"),
    (r"mp(\d+)(?:_(.+))?", "precision at {} (%)"),
    (r"psnr", "PSNR (dB)"),
    (r"ssim", "SSIM"),
    (r"frechet_(.+)", "Fréchet distance, {}"),
    (r"j_and_f", "J&F (%)"),
    (r"j", "J, region overlap (%)"),
    (r"f", "F, contour accuracy (%)"),
    (r"j_recall", "recall of J (%)"),
    (r"f_recall", "recall of F (%)"),
    (r"j_and_f_first_mask_kept", "J&F of the first mask, never moved (%)"),
    (r"purity", "purity (%)"),
    (r"purity_of_one", "purity of a single concept (%)"),
    (r"purity_gain", "gain over a single concept (%)"),
    (r"gain", "gain over chance (%)"),
    (r"chosen_learning_rate", "chosen learning rate"),
    (r"unreadable_images", "unreadable images"),
)


def in_words(protocol: str, value: str) -> str:
    """For example "k-NN accuracy, k = 20 (%)"; a value without words keeps its name."""
    return f"{_PROTOCOLS.get(protocol, protocol)} {value_in_words(value)}"


def value_in_words(value: str) -> str:
    for pattern, words in _VALUES:
        if match := re.fullmatch(pattern, value):
            places = [part.replace("_", " ") for part in match.groups() if part]
            rest = ", ".join(places[words.count("{}") :])
            return words.format(*places) + (f", {rest}" if rest else "")
    return value.replace("_", " ")
