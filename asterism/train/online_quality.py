"""How good the features are during training, long before the loss shows it: online k-NN, or view retrieval.

Images with labels are classified by their neighbours. Without labels, a view of an image has to retrieve another view
of it. The verdict on a run compares the last value with the first, and with raw pixels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor
from torch.nn import functional as F

from asterism.config import Config
from asterism.data import Source, Subset, Views, evaluation_batches, open_source
from asterism.errors import UserError
from asterism.images.bad_image import BadImage
from asterism.nn.encoder import Encoder
from asterism.ops import streams
from asterism.ops.knn import knn_accuracy
from asterism.ops.random import fold, generator
from asterism.ranges import Count, Positive, VoteTemperature
from asterism.train.clock import fitting_stride
from asterism.types import ViewSpec

_IMAGES = 512  # of view retrieval
_AT_ONCE = 128  # images
_NAMES = {
    "knn": "k-NN accuracy on held-out training images",
    "view_retrieval": "the share of images recognised in another view",
}
START = "start"  # after a name: the value of the encoder that a run started from and may keep
_NOISE = 2.0  # percentage points by which two measurements of the same features may differ
_FEW_EPOCHS = 5.0
_TRY = (
    "Try more steps (trainer.steps), optim.name=muon if the network is small and has AdamW, half or twice the "
    "optim.lr, and check effective_rank and the entropies in `asterism report`"
)


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
        self._images: dict[int, list[tuple[UInt8[Tensor, "n 3 s s"], Int[Tensor, " n"]]]] = {}  # by size

    def within(self, minutes: float, encoder: Encoder) -> OnlineKnn:
        """With fewer images, if all of them would take too much of a run of so many minutes."""
        size, bank = encoder.image_size, self._subsets[0]
        total = sum(map(len, self._subsets))
        stride = fitting_stride(minutes, total, lambda few: _embed(encoder, _read(Subset(bank, few), size)[0]))
        return OnlineKnn(self._config, *(Subset(each, range(0, len(each), stride)) for each in self._subsets))

    def accuracy(self, encoder: Encoder, size: int | None = None) -> float:
        """Top-1 in percent, on images of this size; by default the encoder's."""
        size = size or encoder.image_size
        if size not in self._images:  # decoded once, which takes longer than the rest; 3000 of 224 px are 450 MB
            self._images[size] = [_read(subset, size) for subset in self._subsets]
        bank, queries = ((_embed(encoder, images), labels) for images, labels in self._images[size])
        classes = int(torch.cat([bank[1], queries[1]]).max()) + 1
        result = knn_accuracy(*bank, *queries, self._config.k, self._config.temperature, classes)
        return next(iter(result.values()))


class ViewRetrieval:
    """Two views of each of some images, drawn once; each first view has to find its second view among all images."""

    name = "view_retrieval"

    def __init__(self, source: Source, spec: ViewSpec) -> None:
        key = fold(streams.Monitor.VIEW_RETRIEVAL, len(source))
        order = torch.randperm(len(source), generator=generator(key)).tolist()
        self._source = Subset(source, sorted(order[:_IMAGES]))
        self._views = Views((_alone(spec),))
        self._pairs: list[UInt8[Tensor, "n 3 s s"]] = []

    def within(self, minutes: float, encoder: Encoder) -> ViewRetrieval:
        """It takes few images anyway."""
        return self

    def accuracy(self, encoder: Encoder, size: int | None = None) -> float:
        """How often the nearest second view is of the same image, in percent. Views have one size for all encoders."""
        if not self._pairs:
            self._pairs = self._read()
        queries, bank = (F.normalize(_embed(encoder, views), dim=1) for views in self._pairs)
        found = (queries @ bank.T).argmax(dim=1)
        return 100 * float((found == torch.arange(len(found))).float().mean())

    def _read(self) -> list[UInt8[Tensor, "n 3 s s"]]:
        images = []
        for place in range(len(self._source)):
            try:
                images.append(self._source[place].image)
            except BadImage:
                continue
        sizes = [(image.shape[1], image.shape[2]) for image in images]
        keys = [[fold(number, place) for place in range(len(images))] for number in range(2)]
        return [self._views.apply(images, self._views.sample(sizes, some))[0] for some in keys]


def _alone(spec: ViewSpec) -> ViewSpec:
    """The view without its links to other views and to labels."""
    return spec.model_copy(update={"inside": None, "same_place": None, "segments": False})


Quality = OnlineKnn | ViewRetrieval


def open_quality(config: OnlineKnnConfig, source: Source, view: ViewSpec) -> Quality:
    """k-NN if there are labels, else view retrieval. source: the training data; view: one of the method's views."""
    return open_online_knn(config, source) or ViewRetrieval(source, view)


def open_online_knn(config: OnlineKnnConfig, source: Source) -> OnlineKnn | None:
    """None if the training data has no labels (and no other data is configured) or too few images."""
    bank = open_source(config.data) if config.data else source
    if bank.classes is None:
        if config.data:
            raise UserError(
                f"monitor.knn.data = {config.data!r} has no labels; give a folder with one subfolder per class"
            )
        return None
    order = torch.randperm(len(bank), generator=generator(fold(streams.Monitor.KNN, len(bank)))).tolist()
    held_out = min(config.queries, len(bank) // 5)
    if held_out == 0:
        return None
    return OnlineKnn(
        config, Subset(bank, sorted(order[held_out:][: config.bank])), Subset(bank, sorted(order[:held_out]))
    )


def verdict(records: Sequence[Mapping[str, Any]]) -> str | None:
    """The verdict from the logged records; None if nothing was measured at the start or at the end."""
    for name, meaning in _NAMES.items():
        values = [record[name] for record in records if name in record]
        started = next((record for record in records if record["step"] == 0 and name in record), None)
        if started is not None and len(values) > 1:
            if f"{name}_{START}" in started:
                return _sentence_on_adaptation(meaning, started[name], values[-1])
            epochs = max((record["epoch"] for record in records if "epoch" in record), default=math.inf)
            return _sentence(meaning, started[name], values[-1], started.get(f"{name}_pixels"), _advice(epochs))
    return None


def is_behind_start(records: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the newest measurement is below that of the encoder that the run started from."""
    for name in _NAMES:
        start = next((record[key] for record in records if (key := f"{name}_{START}") in record), None)
        newest = next((record[name] for record in reversed(records) if name in record), None)
        if start is not None and newest is not None:
            return bool(newest < start)
    return False


def _sentence_on_adaptation(meaning: str, start: float, end: float) -> str:
    if end < start:
        return (
            f"Kept the model that the run started from: {meaning} is {start:.1f} % with it and {end:.1f} % after "
            "training. Try a lower optim.lr, more images or more steps; the trained weights are in checkpoints/"
        )
    change = f"{meaning} went from {start:.1f} % with the model that the run started from to {end:.1f} %"
    return f"Kept the trained encoder: {change}" + ("" if end > start + _NOISE else ", which is no clear gain")


def _advice(epochs: float) -> str:
    """What to try first. A run that has hardly seen its images needs nothing else."""
    if epochs >= _FEW_EPOCHS:
        return _TRY
    return (
        f"The cause is most likely its length: {epochs:.1f} epochs, so each image was seen {epochs:.1f} times. Train "
        "longer (trainer.steps, trainer.minutes), with smaller images (backbone.image_size), or use nano as it is"
    )


def _sentence(meaning: str, start: float, end: float, pixels: float | None, advice: str) -> str:
    change = f"{meaning} went from {start:.1f} % at the start to {end:.1f} %"
    if end < start - _NOISE:
        return f"Not learned: {change}. {advice}"
    if end <= start + _NOISE:
        return f"No clear gain: {change}. {advice}"
    if pixels is None:
        return f"Learned: {change}"
    if end > pixels + _NOISE:
        return f"Learned: {change}; raw pixels reach {pixels:.1f} %"
    return f"Learned, but not ahead of raw pixels ({pixels:.1f} %): {change}. {advice}"


def _read(source: Source, size: int) -> tuple[UInt8[Tensor, "n 3 s s"], Int[Tensor, " n"]]:
    images, labels = [], []
    for batch in evaluation_batches(source, size, batch_size=_AT_ONCE):
        assert batch.labels is not None
        images.append(batch.images)
        labels.append(batch.labels)
    return torch.cat(images), torch.cat(labels)


@torch.no_grad()
def _embed(encoder: Encoder, images: UInt8[Tensor, "n 3 s s"]) -> Float[Tensor, "n d"]:
    return torch.cat([encoder.encode_cls(part).float().cpu() for part in torch.split(images, _AT_ONCE)])
