import numpy as np
import pytest

from asterism.data.sources.scenes.layout import LARGEST_OTHER, MOST_COVERED, dominant_kind, sample_scene
from asterism.data.sources.scenes.outlines import EXTENT, GRID, VARIANTS, outlines
from asterism.data.sources.scenes.paint import paint
from asterism.data.sources.scenes.shapes import CLASSES
from asterism.ops.random import fold

KEYS = [fold(11, index) for index in range(200)]


def test_outlines_fill_the_unit_circle_and_have_two_parts() -> None:
    line = np.linspace(-EXTENT, EXTENT, GRID)
    radius = np.hypot(line[None, :], line[:, None])
    assert len(outlines()) == len(CLASSES) >= 12
    for variants in outlines():
        assert len({outline.fine.numpy().tobytes() for outline in variants}) == VARIANTS
        for outline in variants:
            inside = outline.fine[0, 0].numpy() < 0
            assert radius[inside].max() == pytest.approx(1, abs=0.05)
            part = inside & (outline.fine[0, 1].numpy() < 0)
            assert 0 < np.count_nonzero(part) < 0.85 * np.count_nonzero(inside)


@pytest.mark.parametrize("objects", [(1, 6), (6, 6), (12, 12)])
def test_dominant_thing_is_dominant_by_construction(objects: tuple[int, int]) -> None:
    for key in KEYS[:60]:
        scene = sample_scene(key, objects)
        first, *others = scene.things
        assert objects[0] <= len(scene.things) <= objects[1]
        assert first.kind == dominant_kind(key)
        assert sorted(scene.front_to_back) == list(range(len(scene.things)))
        assert first.radius <= min(first.x, first.y, 1 - first.x, 1 - first.y) + 1e-9
        assert all(other.area <= LARGEST_OTHER * first.area * (1 + 1e-9) for other in others)
        front = scene.front_to_back[: scene.front_to_back.index(0)]
        assert sum(scene.things[place].area for place in front) <= MOST_COVERED * first.area * (1 + 1e-9)
    assert 1 - MOST_COVERED > LARGEST_OTHER


def test_areas_are_those_of_the_painted_pixels() -> None:
    for key in KEYS[:40]:
        scene = sample_scene(key, (1, 1))
        painted = np.count_nonzero(paint(scene, 192, 0.0).instances) / 192**2
        assert painted == pytest.approx(scene.things[0].area, rel=0.04)
