"""The linear probe that `finetune` starts from, beside scikit-learn's logistic regression on the same features.

    python -m lab.benchmarks.probe MODEL NAME=DATA… --labels 5 20 --draws 4

Each draw takes so many labelled images of every class and tests on the others' test part (at most 2,000 images).
"""

from __future__ import annotations

import argparse

import torch
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor
from torch.nn import functional as F

import asterism
from asterism.data.parts import DataChoice, open_labelled
from asterism.ops.logistic_regression import RIDGES, left_out_logits, logistic_regression
from lab.nano.measure import chosen, described

_STRENGTHS = [0.001, 0.01, 0.1, 1, 10]


def ours(features: Tensor, labels: Tensor, queries: Tensor, seed: int) -> Tensor:
    """Predictions of the layer whose penalty is the best on fifths that were left out."""
    targets = F.one_hot(labels).float()
    groups = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    logits, rows = left_out_logits(features, targets, groups, 5)
    right = [int((each.argmax(dim=1) == labels[rows]).sum()) for each in logits]
    *_, layer = logistic_regression(features, targets, RIDGES[: right.index(max(right)) + 1])
    return layer(queries).argmax(dim=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("data", nargs="+", metavar="NAME=DATA")
    parser.add_argument("--labels", type=int, nargs="+", default=[5, 20])
    parser.add_argument("--draws", type=int, default=4)
    arguments = parser.parse_args()
    encoder = asterism.load(arguments.model)
    others = {
        "cross-validated": make_pipeline(
            StandardScaler(), LogisticRegressionCV(Cs=_STRENGTHS, cv=5, max_iter=300, scoring="accuracy")
        ),
        "C = 1": make_pipeline(StandardScaler(), LogisticRegression(max_iter=300)),
        "C = 1, features as they are": LogisticRegression(max_iter=300),
    }
    for name, place in (item.split("=") for item in arguments.data):
        parts = open_labelled(DataChoice(place), 0.2, 0)
        bank, labels = described(parts.train, lambda images: encoder.encode(images).cls, len(parts.train))
        queries, truth = described(parts.test, lambda images: encoder.encode(images).cls, 2_000)
        for count in arguments.labels:
            scores: dict[str, list[float]] = {}
            for seed in range(arguments.draws):
                rows = chosen(labels, count, seed)
                found = ours(bank[rows], labels[rows], queries, seed)
                scores.setdefault("ours", []).append(float((found == truth).float().mean()))
                for kind, model in others.items():
                    fitted = model.fit(bank[rows], labels[rows])
                    scores.setdefault(kind, []).append(float(fitted.score(queries, truth)))
            means = {kind: round(100 * sum(values) / len(values), 1) for kind, values in scores.items()}
            print(name, count, means, flush=True)


if __name__ == "__main__":
    main()
