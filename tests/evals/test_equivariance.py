"""Concepts that follow the image, and concepts that are tied to the frame, have known values."""

from pathlib import Path

import pytest
import torch
from PIL import Image
from torch.nn import functional as F

from asterism.data.parts import DataChoice
from asterism.errors import UserError
from asterism.evals.equivariance import Equivariance, EquivarianceConfig, matched
from asterism.nn.encoder import Encoder
from asterism.ops.random import generator
from asterism.types import Features
from tests.evals.samples import small_encoder

PATCH, CELLS = 8, 4


class ByColour(Encoder):
    """Two concepts, bright and dark patches, with constant vectors."""

    def __init__(self) -> None:
        super().__init__(small_encoder(PATCH * CELLS).backbone)

    def forward(self, pixels: torch.Tensor) -> Features:
        bright = (F.avg_pool2d(pixels, PATCH).mean(1) > 0).float()
        return _features(torch.eye(2).expand(len(pixels), 2, 2), torch.stack([bright, 1 - bright], dim=1))


class TiedToTheFrame(Encoder):
    """The first concept is always on the left, independently of the image."""

    def __init__(self) -> None:
        super().__init__(small_encoder(PATCH * CELLS).backbone)

    def forward(self, pixels: torch.Tensor) -> Features:
        left = (torch.arange(CELLS) < CELLS // 2).float().expand(len(pixels), CELLS, CELLS)
        return _features(torch.eye(2).expand(len(pixels), 2, 2), torch.stack([left, 1 - left], dim=1))


def test_maps_that_follow_the_image_agree_and_untransformed_ones_do_not(blocks: Path) -> None:
    values = _values(blocks, ByColour())
    for name in ("where_shift", "where_mirror", "concepts_shift", "concepts_mirror", "concepts_zoom"):
        assert values[name] == pytest.approx(100), name
    assert values["where_shift_still"] < 75
    assert values["where_mirror_still"] < 75
    assert values["where_zoom"] > values["where_zoom_still"]


def test_maps_that_are_tied_to_the_frame_stay(blocks: Path) -> None:
    values = _values(blocks, TiedToTheFrame())
    assert values["where_mirror_still"] == pytest.approx(100)
    assert values["where_mirror"] == pytest.approx(0)
    assert values["where_shift"] == pytest.approx(0)  # the half shown in both windows changes sides


def test_concepts_are_matched_before_they_are_compared() -> None:
    concepts = torch.randn(3, 4, 8, generator=generator(1))
    order = torch.tensor([2, 0, 3, 1])
    cosine, partner = matched(concepts, concepts[:, order])
    torch.testing.assert_close(cosine, torch.ones(3))
    assert partner.tolist() == [order.argsort().tolist()] * 3


def test_an_encoder_without_concepts_is_rejected(blocks: Path) -> None:
    with pytest.raises(UserError, match="has no concepts"):
        _values(blocks, small_encoder(PATCH * CELLS))


@pytest.fixture
def blocks(tmp_path: Path) -> Path:
    """Images of black and white squares, each a patch."""
    side = CELLS + 2
    for number in range(8):
        bright = torch.rand(side, side, generator=generator(number)) > 0.5
        pixels = bright.repeat_interleave(PATCH, 0).repeat_interleave(PATCH, 1).to(torch.uint8) * 255
        Image.fromarray(pixels.numpy()).convert("RGB").save(tmp_path / f"{number}.png")
    return tmp_path


def _values(folder: Path, encoder: Encoder) -> dict[str, float]:
    config = EquivarianceConfig(workers=0)
    return dict(Equivariance(config, Equivariance.open_parts(config, DataChoice(str(folder)))).measure(encoder))


def _features(sparse: torch.Tensor, where: torch.Tensor) -> Features:
    count, grid = len(where), (where.shape[2], where.shape[3])
    return Features(torch.zeros(count, 2), torch.zeros(count, grid[0] * grid[1], 2), grid, sparse, where)
