"""Images without labels for evaluations that train something: a training part and a test part."""

from __future__ import annotations

import torch

from asterism.data import Subset, open_source
from asterism.data.evaluation.labelled import DataChoice, Parts
from asterism.data.sources.splits import UnknownSplit
from asterism.errors import UserError
from asterism.ops import streams
from asterism.ops.random import fold, generator


def open_unlabelled(choice: DataChoice, holdout: float, seed: int) -> Parts:
    """Training and test images; if the data has no test part, the share `holdout` is held out from training."""
    train = open_source(choice.path, choice.train_split)
    try:
        return Parts(train, open_source(choice.path, choice.test_split or "test"))
    except UnknownSplit:
        if choice.test_split is not None:
            raise
    count = round(holdout * len(train))
    if not 0 < count < len(train):
        raise UserError(f"{train.name} has {len(train)} images, too few to hold {holdout:.0%} of them out for testing")
    order = torch.randperm(len(train), generator=generator(fold(seed, streams.Unlabelled.HELD_OUT))).tolist()
    note = f"{train.name} has no test part: {holdout:.0%} ({count} images) were held out"
    return Parts(Subset(train, sorted(order[count:])), Subset(train, sorted(order[:count])), (note,))


def open_untrained(choice: DataChoice) -> Parts:
    """Images for a measurement that trains nothing: the test part, or all images if the data has none."""
    try:
        source = open_source(choice.path, choice.test_split or "test")
    except UnknownSplit:
        if choice.test_split is not None:
            raise
        source = open_source(choice.path)
    return Parts(source, source, ("nothing is trained: training and test images are the same",))
