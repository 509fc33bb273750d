import json
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor

from asterism.data.parts import DataChoice
from asterism.errors import UserError
from asterism.evals.bbox_knn import BboxKnn, BboxKnnConfig, point_accuracy
from asterism.ops.box_cells import boxes_in_square, largest_box_cells
from tests.evals.samples import small_encoder, write_colours


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    boxes = {}
    for split, each in (("train", 4), ("test", 2)):
        write_colours(tmp_path / split, each, seed=each)
        for image in sorted((tmp_path / split).rglob("*.png")):
            boxes[str(image.relative_to(tmp_path))] = [3, 2, 20, 17]
    grey = tmp_path / "train" / "red" / "000.png"
    Image.open(grey).convert("L").save(grey)
    (tmp_path / "boxes.json").write_text(json.dumps(boxes))
    return tmp_path


def _evaluation(folder: Path, **settings: object) -> BboxKnn:
    config = BboxKnnConfig(**settings)
    return BboxKnn(config, BboxKnn.open_parts(config, DataChoice(str(folder))))


def _slow(train: Tensor, labels: Tensor, test: Tensor, asked: Tensor, k: int) -> tuple[float, float, Tensor]:
    """One vote at a time, for every point of every test image."""
    rows = [(p / p.norm(), int(label)) for points, label in zip(train, labels, strict=True) for p in points]
    first = five = 0
    predictions = []
    for points, label in zip(test, asked, strict=True):
        rankings = []
        for point in points:
            near = sorted(((float(point @ p / point.norm()), c) for p, c in rows), reverse=True)[:k]
            ballot: dict[int, float] = {}
            for similarity, c in near:
                ballot[c] = ballot.get(c, 0.0) + float(torch.tensor(similarity / 0.07).exp())
            rankings.append(sorted(ballot, key=lambda c: -ballot[c])[:5])
        predictions.append([ranking[0] for ranking in rankings])
        first += any(ranking[0] == label for ranking in rankings)
        five += any(int(label) in ranking for ranking in rankings)
    return 100 * first / len(test), 100 * five / len(test), torch.tensor(predictions)


def test_the_vote_equals_the_slow_loop() -> None:
    g = torch.Generator().manual_seed(0)
    train, test = torch.randn(12, 4, 6, generator=g), torch.randn(7, 4, 6, generator=g)
    labels, asked = torch.randint(8, (12,), generator=g), torch.randint(8, (7,), generator=g)
    labels[0] = 7  # so that there are eight classes
    accuracy, predictions = point_accuracy(train, labels, test, asked, (3, 20), 0.07)
    for k in (3, 20):
        top1, top5, expected = _slow(train, labels, test, asked, k)
        assert accuracy[f"top1_k{k}"] == pytest.approx(top1)
        assert accuracy[f"top5_k{k}"] == pytest.approx(top5)
        assert predictions[k].equal(expected)


def test_values_equal_the_function_on_the_tokens_inside_the_boxes(folder: Path) -> None:
    encoder, evaluation = small_encoder(32), _evaluation(folder, k=(5,), resize=1.0)
    box = torch.tensor([[3.0, 2.0, 21.0, 18.0]], dtype=torch.float64)
    cells, _, _ = largest_box_cells(boxes_in_square(box, (20, 24), 32, 32), 32, 4, 3)
    points, labels = [], []
    for source in (evaluation.parts.train, evaluation.parts.test):
        pictures = [source[i].image.permute(1, 2, 0).numpy() for i in range(len(source))]
        points.append(encoder.encode(pictures).patches[:, cells])
        labels.append(torch.tensor([source.label(i) for i in range(len(source))]))
    expected, _ = point_accuracy(points[0], labels[0], points[1], labels[1], (5,), 0.07)
    assert dict(evaluation.measure(encoder)) == pytest.approx(expected, abs=100 / len(labels[1]) + 1e-6)


def test_boxes_outside_the_crop_and_missing_ones_are_counted(folder: Path) -> None:
    boxes = json.loads((folder / "boxes.json").read_text())
    del boxes["train/red/000.png"]
    boxes["test/blue/000.png"] = [0, 0, 0, 19]  # the crop shows the middle 20 of 24 columns
    (folder / "boxes.json").write_text(json.dumps(boxes))
    values = dict(_evaluation(folder, k=(3,)).measure(small_encoder()))
    assert values["images_without_visible_box"] == 2.0


def test_few_points_are_noted(folder: Path) -> None:
    evaluation = _evaluation(folder)
    assert evaluation.notes() == [
        "one correct point of 9 is enough: guessing among 3 classes would reach 97%",
        "k = 140 was reduced to 108 or less, the number of points in training images",
    ]
    assert list(dict(evaluation.measure(small_encoder()))) == ["top1_k108"]


def test_data_without_boxes_is_rejected(folder: Path) -> None:
    (folder / "boxes.json").unlink()
    with pytest.raises(UserError, match=r"none of the 12 images of .*/train shows a box.*boxes.json"):
        dict(_evaluation(folder).measure(small_encoder()))
