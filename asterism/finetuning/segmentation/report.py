"""The part of a report about classes: how well each is found, and what it is mistaken for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import torch
from jaxtyping import Integer
from torch import Tensor

from asterism.finetuning.segmentation.maps import class_colours
from asterism.images.masks import VOID
from asterism.ops.segmentation_metrics import confusion, scores
from asterism.viz import page
from asterism.viz.page import Section

_MOST = 200  # classes in the table

PixelCounts = Counter[tuple[int, int]]  # pixels by true and predicted class; few of all pairs occur in an image


def pixel_counts(predicted: Integer[Tensor, "h w"], labels: Integer[Tensor, "h w"], classes: int) -> PixelCounts:
    """The counts of one image, in the few bytes that its classes need."""
    table = confusion(predicted, labels, classes, VOID)
    return Counter({(int(row), int(column)): int(table[row, column]) for row, column in table.nonzero()})


def class_sections(classes: Sequence[str], images: Iterable[PixelCounts]) -> list[Section]:
    """The colours of the pictures, and a table with one row per class that occurs, the worst first."""
    total: PixelCounts = Counter()
    for counts in images:
        total.update(counts)
    table = torch.zeros(len(classes), len(classes), dtype=torch.int64)
    for (true, predicted), count in total.items():
        table[true, predicted] = count
    if not total:
        return [Section("Classes", page.note("Every pixel of the held-out images is void."))]
    found = scores(table)
    pixels = table.sum(dim=1)
    there = [place for place in range(len(classes)) if pixels[place]]
    rows = []
    for place in sorted(there, key=lambda place: float(found.iou[place]))[:_MOST]:
        wrong = table[place].clone()
        wrong[place] = 0
        worst = int(wrong.argmax())
        said = f"{classes[worst]} ({int(wrong[worst]) / int(pixels[place]):.0%})" if wrong.any() else ""
        share = float(pixels[place] / pixels.sum())
        rows.append(
            [
                classes[place],
                f"{100 * float(found.iou[place]):.1f}",
                f"{100 * float(found.accuracy[place]):.1f}",
                f"{share:.1%}",
                said,
            ]
        )
    colours = class_colours(tuple(classes))
    legend = page.legend({classes[place]: colours[place] for place in there})
    header = ["class", "IoU", "accuracy", "pixels", "most often taken for"]
    summary = (
        f"Held-out training images: mIoU {100 * found.miou:.1f}, mean class accuracy {100 * found.macc:.1f}, "
        f"pixel accuracy {100 * found.aacc:.1f}."
    )
    return [Section("Classes", legend + page.table(header, rows), summary)]
