from pathlib import Path

import pytest
import torch

from asterism.data import open_source
from asterism.data.parts import Parts
from asterism.errors import UserError
from asterism.evals.knn import Knn, KnnConfig
from asterism.nn.pixel_baseline import pixel_encoder
from asterism.ops.knn import knn_accuracy
from tests.evals.samples import small_encoder, write_colours


def parts_of(folder: Path) -> Parts:
    return Parts(open_source(str(folder), "train"), open_source(str(folder), "test"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_colours(tmp_path / "train", 5)
    write_colours(tmp_path / "test", 2, seed=1)
    return tmp_path


def test_values_equal_the_function_on_the_features(folder: Path) -> None:
    encoder, parts = small_encoder(), parts_of(folder)
    config = KnnConfig(k=(2, 7), resize=1.0)
    vectors = []
    for source in (parts.train, parts.test):
        pictures = [source[i].image.permute(1, 2, 0).numpy() for i in range(len(source))]
        vectors.append(encoder.encode(pictures).cls)
    labels = [torch.arange(3).repeat_interleave(5), torch.arange(3).repeat_interleave(2)]
    expected = knn_accuracy(vectors[0], labels[0], vectors[1], labels[1], (2, 7), 0.07, 3)
    assert dict(Knn(config, parts).measure(encoder)) == expected


def test_classes_are_counted_over_both_parts(folder: Path) -> None:
    """The largest label is missing from the test part, but the votes need a column for it."""
    for image in (folder / "test" / "red").iterdir():
        image.unlink()
    (folder / "test" / "red").rmdir()
    values = dict(Knn(KnnConfig(k=(15,)), parts_of(folder)).measure(pixel_encoder()))
    assert values == {"top1_k15": 100.0}


def test_unreadable_images_are_counted(folder: Path) -> None:
    (folder / "train" / "red" / "000.png").write_bytes(b"")
    assert dict(Knn(KnnConfig(k=(3,)), parts_of(folder)).measure(pixel_encoder()))["unreadable_images"] == 1.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"k": 0}, r"knn.k.0 = 0: must be at least 1"),
        ({"k": []}, "knn.k = \\[\\]: must have 1 or more values"),
        ({"temperature": 0}, "knn.temperature = 0"),
        ({"label_share": 1.5}, "knn.label_share = 1.5"),
        ({"feature": "quarters", "tokens": 4}, "quarters needs every patch; leave out tokens"),
        ({"label_shar": 0.1}, "did you mean 'knn.label_share'"),
    ],
)
def test_wrong_settings_are_explained(settings: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        KnnConfig.parse(settings, section="knn")
