from pathlib import Path

import pytest

from asterism.data.parts import DataChoice
from asterism.errors import UserError
from asterism.evals.linear_seg import LinearSeg, LinearSegConfig
from tests.evals.samples import MeanColours, small_encoder
from tests.evals.segmented_samples import write_camvid


def _evaluation(folder: Path, **settings: object) -> LinearSeg:
    config = LinearSegConfig.parse(settings)
    return LinearSeg(config, LinearSeg.open_parts(config, DataChoice(str(folder))))


@pytest.mark.parametrize("form", ["upsampled", "patches"])
def test_colours_are_learned_and_the_better_rate_is_chosen(tmp_path: Path, form: str) -> None:
    write_camvid(tmp_path, {"train": 10, "test": 3}, size=(16, 32))
    settings = {"form": form, "learning_rates": [1e-9, 0.3], "epochs": 25, "head_batch": 3}
    values = dict(_evaluation(tmp_path, **settings).measure(MeanColours()))
    assert values["chosen_learning_rate"] == 0.3
    assert values["miou"] > 70
    assert values["macc"] > 70
    assert values["aacc"] > 70


def test_concatenated_layers_and_constants(tmp_path: Path) -> None:
    write_camvid(tmp_path, {"train": 3, "test": 1})
    evaluation = _evaluation(tmp_path, layers=4, epochs=1, side=1.5)
    assert evaluation.constants(small_encoder())["side"] == 24
    assert 0 <= dict(evaluation.measure(small_encoder()))["miou"] <= 100


def test_one_training_image_is_rejected(tmp_path: Path) -> None:
    write_camvid(tmp_path, {"train": 1, "test": 1})
    with pytest.raises(UserError, match="linear-seg needs two"):
        dict(_evaluation(tmp_path).measure(small_encoder()))
