"""Evaluation protocols against the reference evaluators."""

from pathlib import Path

import torch
from torch import Tensor

from asterism.extras.papers.backgrounds import branch_accuracy
from asterism.extras.papers.imagenet9 import from_imagenet
from asterism.extras.papers.mean_average_precision import retrieval_scores
from asterism.ops.frechet import Moments, frechet_distance
from asterism.ops.knn import knn_accuracy, votes
from asterism.ops.neighbours import nearest
from asterism.ops.patch_labels import class_counts, majority_labels, mean_of_neighbours, mode_labels, soft_labels
from asterism.ops.propagation import hard_labels, propagate
from asterism.ops.segmentation_metrics import confusion, scores
from asterism.ops.video_metrics import boundary_similarity, region_similarity
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


def test_label_propagation(golden: Path) -> None:
    file = read(golden / "evals" / "label_propagation.npz")
    settings = {name: file.params[name] for name in ("topk", "radius", "temperature")}
    masks = list(
        propagate(file["in_features"], file["in_first_mask"], context=file.params["context_frames"], **settings)
    )
    assert relative_error(torch.stack(masks), file["out_masks"]) <= file.params["tolerance"]

    height, width = file["out_labels"].shape[1:]
    output = (file.params["output_h"], file.params["output_w"])
    labels = torch.stack([hard_labels(mask, (height, width)) for mask in masks])
    resized = torch.stack([hard_labels(mask, (height, width), output) for mask in masks])
    assert labels.equal(file["out_labels"].long())
    # If the centre of an output pixel falls between two source pixels, either may be used.
    clear = [
        torch.tensor([(2 * place + 1) * old % (2 * new) != 0 for place in range(new)])
        for old, new in zip((height, width), output, strict=True)
    ]
    decided = clear[0][:, None] & clear[1]
    assert resized[:, decided].equal(file["out_labels_resized"].long()[:, decided])


def test_davis_metrics(golden: Path) -> None:
    file = read(golden / "evals" / "davis_metrics.npz")
    predicted, true = file["in_pred"].bool(), file["in_gt"].bool()
    f = boundary_similarity(predicted, true, file.params["bound_th"])
    for ours, expected in ((region_similarity(predicted, true), file["out_j"]), (f, file["out_f"])):
        assert (ours - expected).abs().max() <= file.params["tolerance"]


def test_miou(golden: Path) -> None:
    file = read(golden / "evals" / "miou.npz")
    void, tolerance = file.params["ignore_index"], file.params["tolerance"]
    counts = sum(
        confusion(predicted, label, file.params["num_classes"], void)
        for predicted, label in zip(file["in_pred"], file["in_label"], strict=True)
    )
    found = scores(counts)
    torch.testing.assert_close(found.iou.float(), file["out_iou"], atol=tolerance, rtol=0, equal_nan=True)
    torch.testing.assert_close(found.accuracy.float(), file["out_acc"], atol=tolerance, rtol=0, equal_nan=True)
    for name in ("miou", "macc", "aacc"):
        assert abs(getattr(found, name) - float(file[f"out_{name}"])) <= tolerance
    summary = 100 * torch.tensor([found.aacc, found.miou, found.macc])
    torch.testing.assert_close(summary, file["out_summary_rounded"], atol=0.011, rtol=0)


def test_patch_labels(golden: Path) -> None:
    file = read(golden / "evals" / "dense_nn.npz")
    void, classes = file.params["ignore_label"], file.params["num_classes"]
    for size in "abc":
        side = file.params[f"patch_{size}"]
        counts = class_counts(file["in_masks"], (side, side), classes, void)
        assert relative_error(soft_labels(counts), file[f"out_patch_soft_{size}"]) <= file.params["tolerance"]
        for name, rule in (("mode", mode_labels), ("majority", majority_labels)):
            assert rule(counts, void).equal(file[f"out_patch_{name}_{size}"].long()), f"{name} of {side} pixels"


def test_dense_neighbours(golden: Path) -> None:
    file = read(golden / "evals" / "dense_nn.npz")
    k, tolerance, side = file.params["k"], file.params["tolerance"], file.params["keys_patch"]
    counts = class_counts(file["in_masks"], (side, side), file.params["num_classes"], file.params["ignore_label"])
    keys, labels = file["in_memory_features"].flatten(0, 1), soft_labels(counts).flatten(0, 2)
    assert relative_error(torch.nn.functional.normalize(keys, dim=1), file["in_keys"]) <= tolerance
    assert relative_error(labels, file["in_key_labels"]) <= tolerance
    similarity, index = nearest(file["in_queries"].flatten(0, 1), keys, k)
    assert index.view_as(file["out_neighbour_idx"]).equal(file["out_neighbour_idx"])
    found = mean_of_neighbours(similarity, labels[index], file.params["beta"])
    assert relative_error(found.view_as(file["out_soft_labels"]), file["out_soft_labels"]) <= tolerance


def test_retrieval(golden: Path) -> None:
    file = read(golden / "evals" / "retrieval_map.npz")
    easy, hard, junk = ([row[row >= 0] for row in file[f"in_{name}"]] for name in ("easy", "hard", "junk"))
    settings = [(easy, _joined(junk, hard)), (_joined(easy, hard), junk), (hard, _joined(junk, easy))]
    for i, (positives, ignored) in enumerate(settings):
        found = retrieval_scores(file["in_ranks"].mT, positives, ignored, file["in_ks"].tolist())
        pairs = {
            "map": (torch.tensor(found.map), file["out_map"][i]),
            "mp": (found.mean_precision, file["out_mp"][i]),
            "ap": (found.ap, file["out_ap"][i]),
            "p": (found.precision, file["out_p"][i]),
        }
        for name, (ours, expected) in pairs.items():
            torch.testing.assert_close(
                ours.float(), expected, atol=file.params["tolerance"], rtol=0, equal_nan=True, msg=f"{name} of {i}"
            )


def _joined(a: list[Tensor], b: list[Tensor]) -> list[Tensor]:
    return [torch.cat(pair) for pair in zip(a, b, strict=True)]


def test_frechet(golden: Path) -> None:
    file = read(golden / "evals" / "frechet.npz")
    moments = {}
    for side in "ab":
        moments[side] = Moments()
        for rows in file[f"in_features_{side}"].split(50):
            moments[side].add(rows)
        assert relative_error(moments[side].mean, file[f"out_mean_{side}"]) <= file.params["tolerance"]
        assert relative_error(moments[side].covariance, file[f"out_cov_{side}"]) <= file.params["tolerance"]
    distance = frechet_distance(moments["a"], moments["b"])
    assert abs(distance / file.params["value"] - 1) <= 1e-9


def test_imagenet9_mapping(golden: Path) -> None:
    file = read(golden / "evals" / "in9_mapping.npz")
    mapping = from_imagenet()
    assert mapping.equal(file["out_mapping"])
    assert mapping[file["in_predictions"]].equal(file["out_mapped_predictions"])
    accuracy = branch_accuracy(file["in_predictions"], file["in_targets"], mapping)
    assert abs(accuracy - 100 * float(file["out_accuracy"])) <= 100 * file.params["tolerance"]
