from pathlib import Path

import pytest
from PIL import Image

from asterism.data.parts import DataChoice
from asterism.errors import UserError
from asterism.evals.run import run_protocol
from asterism.extras.papers.backgrounds import Backgrounds, BackgroundsConfig, class_map
from asterism.extras.papers.imagenet9 import CLASSES
from asterism.nn.pixel_baseline import pixel_encoder
from asterism.types import Model


def write(folder: Path, brightness: int) -> None:
    """One image of each class, which determines the hue."""
    for number, name in enumerate(CLASSES):
        path = folder / f"{number:02d}_{name}" / "0.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("HSV", (16, 16), (number * 28, 255, brightness)).convert("RGB").save(path)
        Image.new("HSV", (16, 16), (number * 28, 255, brightness - 9)).convert("RGB").save(path.with_name("1.png"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "original/train", 255)
    write(tmp_path / "original/val", 240)
    write(tmp_path / "mixed_same/val", 230)
    write(tmp_path / "mixed_rand/val", 220)
    for path in (tmp_path / "mixed_rand/val/00_dog").iterdir():
        Image.new("HSV", (16, 16), (28, 255, 255)).convert("RGB").save(path)  # dogs that look like birds
    return tmp_path


@pytest.mark.parametrize("classifier", ["knn", "linear"])
def test_every_variation_has_an_accuracy(folder: Path, classifier: str) -> None:
    config = BackgroundsConfig.parse({"classifier": classifier, "k": 1, "epochs": 30, "learning_rates": [0.003, 0.03]})
    result = run_protocol("backgrounds", config, DataChoice(str(folder)), pixel_encoder(), Model("pixels"))
    right = {"original": 100.0, "mixed_same": 100.0, "mixed_rand": 100 * 8 / 9}
    if classifier == "knn":
        assert result.values == pytest.approx(
            {f"top1_{name}": value for name, value in right.items()} | {"background_gap": 100 / 9}
        )
    assert result.values["top1_original"] > 80
    assert ("epochs" in result.constants) == (classifier == "linear")
    assert result.constants["classes_of_classifier"] == 9
    assert result.test.images == 54


def test_classes_must_match() -> None:
    assert class_map(["a", "b"], ["x", "y"]).tolist() == [0, 1]
    assert len(class_map([""] * 1000, list(CLASSES))) == 1000
    with pytest.raises(UserError, match="would have 5 classes, but the variations have 9"):
        class_map(["a"] * 5, list(CLASSES))


def test_training_images_are_needed(tmp_path: Path) -> None:
    write(tmp_path / "original", 240)
    config = BackgroundsConfig()
    with pytest.raises(UserError, match="no original/train"):
        Backgrounds.open_parts(config, DataChoice(str(tmp_path)))
    with pytest.raises(UserError, match="cifar-none"):
        Backgrounds.open_parts(config, DataChoice("cifar-none"))
