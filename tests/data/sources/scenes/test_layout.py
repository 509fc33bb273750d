import colorsys
import math

import numpy as np
import pytest

from asterism.data.sources.scenes.layout import LARGEST_OTHER, MOST_COVERED, Thing, dominant_kind, sample_scene
from asterism.data.sources.scenes.outlines import EXTENT, GRID, VARIANTS, outlines
from asterism.data.sources.scenes.paint import paint
from asterism.data.sources.scenes.shapes import CLASSES
from asterism.data.sources.scenes.surfaces import PATTERNS, USUAL
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


def test_what_a_thing_looks_like_varies_within_its_class() -> None:
    things = [sample_scene(key, (1, 1)).things[0] for key in KEYS]
    hues = {round(thing.surface.base[0], 1) for thing in things if thing.kind == things[0].kind}
    assert len(hues) > 2
    assert {thing.surface.pattern for thing in things} == set(PATTERNS)
    assert {thing.mirrored for thing in things} == {True, False}
    assert max(abs(thing.angle) for thing in things) > math.pi / 6


def test_no_single_property_of_the_usual_material_tells_the_class() -> None:
    assert set(USUAL) == set(CLASSES)
    materials = list(USUAL.values())
    assert len(set(materials)) == len(CLASSES)
    for name in ("hue", "part_hue"):
        values = [getattr(material, name) for material in materials]
        assert all(values.count(value) == 2 for value in values)
    patterns = [material.pattern for material in materials]
    assert set(patterns) <= set(PATTERNS)
    assert sum(patterns.count(pattern) > 1 for pattern in patterns) >= 14


def test_most_things_are_made_of_the_usual_material_of_their_class() -> None:
    things = [sample_scene(fold(7, key), (1, 1)).things[0] for key in range(300)]
    usual = [_is_usual(thing) for thing in things]
    assert 0.85 < sum(usual) / len(usual) < 0.95  # 90 %


def test_things_lie_as_they_fall_unless_they_stand() -> None:
    things = [sample_scene(fold(8, key), (1, 1)).things[0] for key in range(300)]
    standing = [abs(thing.angle) for thing in things if CLASSES[thing.kind] == "house"]
    lying = [abs(thing.angle) for thing in things if CLASSES[thing.kind] == "key"]
    assert max(standing) < 0.36
    assert max(lying) > 2.5


def _is_usual(thing: Thing) -> bool:
    hue, part_hue = (colorsys.rgb_to_hsv(*color)[0] for color in (thing.surface.base, thing.surface.part))
    usual = USUAL[CLASSES[thing.kind]]
    same_pattern = thing.surface.pattern == usual.pattern
    return same_pattern and _apart(hue, usual.hue) <= 0.041 and _apart(part_hue, usual.part_hue) <= 0.041


def _apart(a: float, b: float) -> float:
    """Distance of two hues on their circle."""
    return min(abs(a - b), 1 - abs(a - b))
