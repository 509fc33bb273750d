from __future__ import annotations

import torch

from asterism.data import Scenes
from asterism.data.kept import KeptImages
from asterism.data.sources.source import Sample


class Counted(Scenes):
    """Scenes that count how often each was drawn."""

    def __init__(self, count: int) -> None:
        super().__init__(size=16, count=count)
        self.drawn: list[int] = []

    def __getitem__(self, index: int) -> Sample:
        self.drawn.append(index)
        return super().__getitem__(index)


def test_kept_images_are_decoded_once_and_equal_the_source() -> None:
    source = Counted(5)
    images = KeptImages(source, megabytes=1)
    for index in [3, 1, 3, 3, 1]:
        sample, expected = images[index], Scenes(size=16, count=5)[index]
        assert sample.key == expected.key
        assert sample.label == expected.label
        assert torch.equal(sample.image, expected.image)
        assert sample.semantic is not None
        assert expected.semantic is not None
        assert torch.equal(sample.semantic.long(), expected.semantic)
    assert source.drawn == [3, 1]


def test_memory_is_limited_and_the_first_images_stay() -> None:
    source = Counted(10)
    bytes_each = 16 * 16 * 4  # three channels and the class of each pixel
    images = KeptImages(source, megabytes=3.5 * bytes_each / 2**20)
    for _ in range(2):
        for index in range(10):
            assert images[index].key == str(index)
    assert source.drawn == [*range(10), *range(3, 10)]


def test_nothing_is_kept_with_a_limit_of_zero() -> None:
    source = Counted(2)
    images = KeptImages(source, megabytes=0)
    sample = [images[0], images[0]][1]
    assert source.drawn == [0, 0]
    assert sample.boxes is not None
