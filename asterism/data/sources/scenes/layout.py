"""What is in a scene and where: every number of a scene, drawn before anything is painted.

Lengths are in sides of the picture, so that a scene is the same at every size in pixels.

The first thing is the dominant one, and it stays the largest that can be seen, by construction: it lies wholly inside
the picture; every other thing has at most `LARGEST_OTHER` of its area; and the things in front of it cover at most
`MOST_COVERED` of it, since that is what their areas add up to. As 1 - MOST_COVERED > LARGEST_OTHER, its visible area is
the largest, with room to spare for the rounding of areas to pixels.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from asterism.data.sources.scenes.draws import Draws
from asterism.data.sources.scenes.outlines import VARIANTS, outlines
from asterism.data.sources.scenes.shapes import CLASSES
from asterism.data.sources.scenes.surfaces import Background, Surface, sample_background, sample_surface
from asterism.ops import streams
from asterism.ops.random import fold

LARGEST_OTHER = 0.3  # area of any other thing over the dominant one's
MOST_COVERED = 0.25  # area of all things in front of the dominant one over its own
_SMALLEST_RADIUS = 0.09
_LEAN = 0.35  # most that standing things are turned either way, radians; the others lie as they fall
_STANDING = frozenset(("boat", "house", "tree", "mushroom", "mug"))


class Thing(NamedTuple):
    """One thing: an outline, how it lies in the picture, and what it is made of."""

    kind: int  # place in `CLASSES`
    variant: int
    x: float
    y: float
    radius: float  # of the circle around it, before it is squeezed
    angle: float  # clockwise turn, radians
    squeeze: float  # it is narrowed by this factor …
    squeeze_angle: float  # … in this direction of its own frame
    mirrored: bool
    surface: Surface

    @property
    def area(self) -> float:
        return outlines()[self.kind][self.variant].area * self.radius**2 * self.squeeze


class Scene(NamedTuple):
    """A scene to be painted; `things[0]` is the dominant thing."""

    background: Background
    things: tuple[Thing, ...]
    front_to_back: tuple[int, ...]  # places in `things`
    light: float  # direction the light comes from, in the picture plane, radians


def dominant_kind(key: int) -> int:
    """The class of a scene: a function of its key alone, known without drawing the rest."""
    return fold(key, streams.Scene.LABEL) % len(CLASSES)


def sample_scene(key: int, objects: tuple[int, int]) -> Scene:
    """The scene of a key, with `objects[0]` to `objects[1]` things."""
    draw = Draws(fold(key, streams.Scene.LAYOUT))
    background = sample_background(draw)
    count = draw.whole(*objects)
    dominant = _dominant(draw, dominant_kind(key), background)
    things, front = [dominant], []
    room = MOST_COVERED
    for place in range(1, count):
        share = draw.between(0.06, 1.0) ** 1.5 * LARGEST_OTHER
        other = _other(draw, share, things, background)
        things.append(other)
        share = other.area / dominant.area
        if share <= room and draw.chance(0.6):
            room -= share
            front.append(place)
    behind = [place for place in range(1, count) if place not in front]
    return Scene(background, tuple(things), (*front, 0, *behind), light=draw.between(-2.8, -0.35))


def _dominant(draw: Draws, kind: int, background: Background) -> Thing:
    variant = draw.whole(0, VARIANTS - 1)
    # Slender outlines are made larger, so that the area of a thing says little about its class.
    radius = min(0.44, draw.between(0.24, 0.38) * (1.6 / outlines()[kind][variant].area) ** 0.3)
    x, y = draw.between(radius, 1 - radius), draw.between(radius, 1 - radius)
    return _thing(draw, kind, variant, x, y, radius, background)


def _other(draw: Draws, share: float, things: list[Thing], background: Background) -> Thing:
    """A smaller thing, `share` of the dominant one's area before it is squeezed."""
    kind, variant = draw.whole(0, len(CLASSES) - 1), draw.whole(0, VARIANTS - 1)
    area = outlines()[kind][variant].area
    largest = math.sqrt(LARGEST_OTHER * things[0].area / area)
    radius = min(largest, max(_SMALLEST_RADIUS, math.sqrt(share * things[0].area / area)))
    x, y = _free_place(draw, radius, things)
    return _thing(draw, kind, variant, x, y, radius, background)


def _free_place(draw: Draws, radius: float, things: list[Thing]) -> tuple[float, float]:
    """The first of a few places where the circles around things overlap little enough, or else the best of them."""
    best, most = (0.5, 0.5), -1.0
    enough = draw.between(0.45, 1.0)
    for _ in range(6):
        x, y = draw.between(0.04, 0.96), draw.between(0.04, 0.96)
        apart = min([math.hypot(x - other.x, y - other.y) / (radius + other.radius) for other in things])
        if apart > most:
            best, most = (x, y), apart
        if apart > enough:
            break
    return best


def _thing(draw: Draws, kind: int, variant: int, x: float, y: float, radius: float, background: Background) -> Thing:
    turn = _LEAN if CLASSES[kind] in _STANDING else math.pi
    return Thing(
        kind,
        variant,
        x,
        y,
        radius,
        angle=draw.between(-turn, turn),
        squeeze=draw.between(0.76, 1.0),
        squeeze_angle=draw.between(0, math.pi),
        mirrored=draw.chance(0.5),
        surface=sample_surface(draw, CLASSES[kind], background),
    )
