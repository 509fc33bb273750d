"""k-NN accuracy during training, which shows how good the features are long before the loss does."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from asterism.config import Config
from asterism.data import DataConfig, Source, Subset, evaluation_batches, open_source
from asterism.errors import UserError
from asterism.nn.encoder import Encoder
from asterism.ops import streams
from asterism.ops.knn import knn_accuracy
from asterism.ops.random import fold, generator
from asterism.ranges import Count, Positive, VoteTemperature


class OnlineKnnConfig(Config):
    """Weighted k-NN on a labelled subset; without labels, how often a view retrieves the other view of its image."""

    data: str | None = None  # a labelled source; None: the training data, when it has labels
    every_epochs: Positive | None = None  # None: ten times in a run
    bank: Count = 2000  # labelled images the neighbours come from
    queries: Count = 1000  # images to classify, from the same split: the test set is not for monitoring and tuning
    k: Count = 20
    temperature: VoteTemperature = 0.07


class OnlineKnn:
    """Holds the two subsets, which depend only on the data and do not change during a run."""

    name = "knn"

    def __init__(self, config: OnlineKnnConfig, bank: Source, queries: Source) -> None:
        self._config = config
        self._subsets = (bank, queries)
        self._images: list[tuple[UInt8[Tensor, "n 3 s s"], Int[Tensor, " n"]]] = []

    def accuracy(self, encoder: Encoder) -> float:
        """Top-1 in percent."""
        if not self._images:  # decoded once, since that takes longer than the rest; 3000 images of 224 px are 450 MB
            self._images = [_read(subset, encoder.image_size) for subset in self._subsets]
        bank, queries = ((_embed(encoder, images), labels) for images, labels in self._images)
        classes = int(torch.cat([bank[1], queries[1]]).max()) + 1
        result = knn_accuracy(*bank, *queries, self._config.k, self._config.temperature, classes)
        return next(iter(result.values()))


def _read(source: Source, size: int) -> tuple[UInt8[Tensor, "n 3 s s"], Int[Tensor, " n"]]:
    images, labels = [], []
    for batch in evaluation_batches(source, size, batch_size=128):
        assert batch.labels is not None
        images.append(batch.images)
        labels.append(batch.labels)
    return torch.cat(images), torch.cat(labels)


@torch.no_grad()
def _embed(encoder: Encoder, images: UInt8[Tensor, "n 3 s s"]) -> Float[Tensor, "n d"]:
    return torch.cat([encoder.encode_cls(part).float().cpu() for part in torch.split(images, 128)])


def open_online_knn(config: OnlineKnnConfig, data: DataConfig) -> OnlineKnn | None:
    """None if the training data has no labels (and no other data is configured) or too few images."""
    path = config.data or data.path
    bank = open_source(path, None if config.data else data.split)
    if bank.classes is None:
        if config.data:
            raise UserError(f"monitor.knn.data = {path!r} has no labels; give a folder with one subfolder per class")
        return None
    order = torch.randperm(len(bank), generator=generator(fold(streams.Monitor.KNN, len(bank)))).tolist()
    held_out = min(config.queries, len(bank) // 5)
    if held_out == 0:
        return None
    return OnlineKnn(
        config, Subset(bank, sorted(order[held_out:][: config.bank])), Subset(bank, sorted(order[:held_out]))
    )
