"""The tables of nano's card: whole images by neighbours, a linear layer and few labels; and tracking.

    python -m lab.nano.measure OUT.json images MODEL[,MODEL…] NAME=DATA…
    python -m lab.nano.measure OUT.json davis MODEL[,MODEL…] DATA/davis

Compared are the models, an untrained network of the first one's architecture, raw pixels (32 × 32), and a histogram of
hues. All have the same images (at most 10,000 with labels and 2,000 to classify, drawn with a fixed seed), neighbours
(k = 20, temperature 0.07) and logistic regression on at most 256 principal components, whose strength is chosen on a
fifth of the training images. "few" has 20 labels per class, a mean of three draws with the deviation.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedShuffleSplit
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

import asterism
from asterism.data.parts import DataChoice, Parts, open_labelled
from asterism.data.sources.source import Source
from asterism.evals.baselines import untrained
from asterism.images.centre_crop import center_square
from asterism.nn.pixel_baseline import pixel_encoder
from asterism.ops.knn import knn_accuracy

Describe = Callable[[Tensor], Tensor]  # [b, 3, s, s] in [0, 1] to [b, d]

BINS = 36
_SIZE = 64
_STRENGTHS = (0.001, 0.01, 0.1, 1.0, 10.0)
_WITH_LABELS, _TO_CLASSIFY = 10_000, 2_000
_COMPONENTS = 256


def hues(images: Tensor) -> Tensor:
    """A histogram of hues, each pixel as strong as its colour, and the square root of it."""
    high, low = images.amax(1), images.amin(1)
    strength = high - low
    red, green, blue = images.unbind(1)
    turn = torch.stack([(green - blue) % (6 * strength + 1e-9), blue - red + 2 * strength, red - green + 4 * strength])
    hue = turn.gather(0, images.argmax(1, keepdim=True).transpose(0, 1))[0] / (strength + 1e-9) % 6
    bins = (hue / 6 * BINS).long().clamp(0, BINS - 1).flatten(1)
    counts = torch.zeros(len(images), BINS).scatter_add_(1, bins, strength.flatten(1))
    return (counts / (counts.sum(1, keepdim=True) + 1e-6)).sqrt()


def described(source: Source, describe: Describe, most: int) -> tuple[Tensor, Tensor]:
    found, labels = [], []
    order = torch.randperm(len(source), generator=torch.Generator().manual_seed(0))[:most].tolist()
    for first in range(0, len(order), 128):
        samples = [source[row] for row in order[first : first + 128]]
        found.append(
            describe(torch.stack([center_square(sample.image, _SIZE, _SIZE) for sample in samples]).float() / 255)
        )
        labels += [sample.label for sample in samples]
    return torch.cat(found), torch.tensor(labels)


def regression(bank: Tensor, labels: Tensor, queries: Tensor, truth: Tensor) -> float:
    """Accuracy of logistic regression, with the strength that is best on a fifth of the bank."""
    steps: list[Any] = [StandardScaler()]
    if bank.shape[1] > _COMPONENTS:
        steps.append(PCA(min(_COMPONENTS, len(bank) // 2), random_state=0))
    seen = make_pipeline(*steps).fit(bank)
    x, y, test = seen.transform(bank), labels.numpy(), seen.transform(queries)
    fit, held = next(StratifiedShuffleSplit(1, test_size=0.2, random_state=0).split(x, y))

    def score(strength: float) -> float:
        model = LogisticRegression(C=strength, max_iter=300).fit(x[fit], y[fit])
        return float(model.score(x[held], y[held]))

    best = max(_STRENGTHS, key=score)
    return 100 * float(LogisticRegression(C=best, max_iter=500).fit(x, y).score(test, truth.numpy()))


def chosen(labels: Tensor, per_class: int, seed: int) -> Tensor:
    draw = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    return torch.cat([draw[labels[draw] == label][:per_class] for label in labels.unique()])


def whole_images(parts: Parts, describe: Describe) -> dict[str, float]:
    bank, labels = described(parts.train, describe, _WITH_LABELS)
    queries, truth = described(parts.test, describe, _TO_CLASSIFY)
    classes = int(labels.max()) + 1
    scores = {"k-NN": knn_accuracy(bank, labels, queries, truth, [20], 0.07, classes)["top1_k20"]}
    scores["linear"] = regression(bank, labels, queries, truth)
    draws = [chosen(labels, 20, seed) for seed in range(3)]
    few = [regression(bank[rows], labels[rows], queries, truth) for rows in draws]
    return scores | {"few": float(np.mean(few)), "few ±": float(np.std(few, ddof=1))}


def describers(models: list[str]) -> dict[str, Describe]:
    encoders = {name: asterism.load(name) for name in models}
    encoders |= {"untrained": untrained(encoders[models[0]]), "pixels": pixel_encoder()}
    return {"hues": hues} | {name: lambda images, e=encoder: e.encode(images).cls for name, encoder in encoders.items()}


def main(out: Path, what: str, models: list[str], *data: str) -> None:
    table = json.loads(out.read_text()) if out.is_file() else {}
    if what == "images":
        for name, place in (item.split("=") for item in data):
            parts = open_labelled(DataChoice(place), 0.2, 0)
            for model, describe in describers(models).items():
                table.setdefault(name, {})[model] = whole_images(parts, describe)
                print(name, model, {key: round(value, 1) for key, value in table[name][model].items()}, flush=True)
    else:
        result = asterism.evaluate(models[0], data[0], ["video"], baselines=True, against=models[1:])
        table[what] = {name: {models[0]: dict(one.values)} | dict(one.baselines) for name, one in result.items()}
    out.write_text(json.dumps(table, indent=2) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3].split(","), *sys.argv[4:])
