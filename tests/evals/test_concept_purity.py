from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from asterism.data.parts import DataChoice
from asterism.errors import UserError
from asterism.evals.concept_purity import ConceptPurity
from asterism.evals.settings import WholeImagesConfig
from asterism.nn.encoder import Encoder
from asterism.types import Features
from tests.evals.samples import small_encoder
from tests.evals.segmented_samples import write_camvid


class ColourConcepts(Encoder):
    """One concept for each of the three colours; with `sharp` 0, every patch belongs equally to all."""

    def __init__(self, sharp: float) -> None:
        super().__init__(small_encoder().backbone)
        self.sharp = sharp

    def forward(self, pixels: torch.Tensor) -> Features:
        where = torch.softmax(self.sharp * F.avg_pool2d(pixels, 8), dim=1)
        grid = (where.shape[2], where.shape[3])
        patches = where.flatten(2).mT
        return Features(patches.mean(1), patches, grid, torch.eye(3).expand(len(pixels), 3, 3), where)


def test_one_concept_per_object_is_pure(tmp_path: Path) -> None:
    values = _values(tmp_path, ColourConcepts(1000.0))
    assert values["purity"] == pytest.approx(100)
    assert values["purity_of_one"] == pytest.approx(50)
    assert values["purity_gain"] == pytest.approx(100)
    assert values["concepts_in_use"] == pytest.approx(2)  # two halves


def test_concepts_that_are_everywhere_gain_nothing(tmp_path: Path) -> None:
    values = _values(tmp_path, ColourConcepts(0.0))
    assert values["purity"] == pytest.approx(50)
    assert values["purity_gain"] == pytest.approx(0)
    assert values["concepts_in_use"] == pytest.approx(3)


def test_an_encoder_without_concepts_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no concepts"):
        _values(tmp_path, small_encoder())


def _values(folder: Path, encoder: Encoder) -> dict[str, float]:
    write_camvid(folder, {"train": 2, "test": 3}, size=(16, 32))
    config = WholeImagesConfig(workers=0)
    return dict(ConceptPurity(config, ConceptPurity.open_parts(config, DataChoice(str(folder)))).measure(encoder))
