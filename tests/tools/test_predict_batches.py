"""Predictions of folders: batches that fit into memory."""

from __future__ import annotations

import pytest
import torch

from asterism.tools import predict
from asterism.viz.captioned import captioned


def test_large_images_make_small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predict, "_MOST_VALUES", 3 * 100)
    sides = [5, 5, 20, 5, 5, 5, 5]
    pictures = [(str(side), str(side), torch.zeros(3, side, side, dtype=torch.uint8)) for side in sides]
    batches = list(predict._batches(pictures, 3))
    assert [len(batch) for batch in batches] == [3, 3, 1]
    monkeypatch.setattr(predict, "_MOST_VALUES", 3 * 40)
    batches = list(predict._batches(pictures, 3))
    assert [[key for key, _, _ in batch] for batch in batches] == [["5", "5"], ["20"], ["5", "5"], ["5", "5"]]


@pytest.mark.parametrize(
    ("size", "picture"), [((3000, 6000), (1024, 2048)), ((40, 20), (400, 200)), ((500, 400), (500, 400))]
)
def test_captioned_pictures_are_neither_too_small_nor_too_large(
    size: tuple[int, int], picture: tuple[int, int]
) -> None:
    found = captioned(torch.full((3, *size), 90, dtype=torch.uint8), "blue 33%")
    assert found.shape[2] == picture[1]
    assert picture[0] < found.shape[1] <= picture[0] + 2 * max(16, min(picture) // 12)
    assert (found[:, : picture[0] - 1] == 90).all()
