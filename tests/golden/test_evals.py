"""Evaluation protocols against the reference evaluators."""

from __future__ import annotations

from pathlib import Path

from asterism.ops.neighbours import knn_accuracy, nearest, votes
from tests.golden.vectors import read, relative_error


def test_knn(golden: Path) -> None:
    file = read(golden / "evals" / "knn.npz")
    train, train_labels = file["in_train_features"], file["in_train_labels"]
    test, test_labels = file["in_test_features"], file["in_test_labels"]
    temperature, classes = file.params["temperature"], file.params["num_classes"]
    tolerance = file.params["tolerance"]

    accuracy = knn_accuracy(train, train_labels, test, test_labels, file["in_k"].tolist(), temperature, classes)
    for i, k in enumerate(file["in_k"].tolist()):
        for metric in ("top1", "top5"):
            expected = file[f"out_{metric}"][i]
            ours = expected.new_tensor(accuracy[f"{metric}_k{k}"])
            assert relative_error(ours, expected) <= tolerance, f"{metric} at k = {k}: {ours} instead of {expected}"

    similarity, index = nearest(test, train, file.params["prediction_k"])
    ballot, ranking = votes(similarity, train_labels[index], classes, temperature).topk(file["out_votes_top5"].shape[1])
    assert ranking[:, 0].equal(file["out_predictions"])
    assert relative_error(ballot, file["out_votes_top5"]) <= tolerance
