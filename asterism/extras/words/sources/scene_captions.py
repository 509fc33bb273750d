"""Scenes with captions: sentences written from their contents, and false ones with a word or two swapped.

Colours, sizes and places are those of what can be seen. A relation is only named where the eye agrees: centres at least
`_CLEARLY` apart, and no second thing of the same kind that could be meant.
"""

from __future__ import annotations

import colorsys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, TypeVar

import numpy as np

from asterism.data.sources.scenes.draws import Draws
from asterism.data.sources.scenes.layout import Scene
from asterism.data.sources.scenes.paint import paint
from asterism.data.sources.scenes.shapes import CLASSES
from asterism.data.sources.scenes.stills import LEAST_VISIBLE, Scenes
from asterism.data.sources.scenes.surfaces import HUES, Color
from asterism.extras.words.sources.captioned import Captioned, Negative, Texts
from asterism.ops import streams
from asterism.ops.random import fold

Item = TypeVar("Item")

_PIXELS = 32  # side of the picture that things are looked for in: sentences do not depend on the size of the images
_LEAST_AREA = 0.01  # of the picture; smaller things are not mentioned
_CLEARLY = 0.15  # sides of the picture between two centres, or a centre and the middle
_LARGE, _SMALL = 0.12, 0.06  # area of the picture above and below which a thing is called so
_MOST_RELATIONS = 3  # sentences about two things each
_OPPOSITE = {"left of": "right of", "above": "below", "in front of": "behind"}
_OPPOSITE |= {other: one for one, other in _OPPOSITE.items()}


def captioned_scenes(settings: Mapping[str, int], split: str) -> Captioned:
    """The scenes of `Scenes(**settings)`, each with a few sentences."""
    values: dict[str, Any] = dict(settings)
    scenes = Scenes(**values, split=split)
    draws = [Draws(fold(scenes.key(index), streams.Scene.SENTENCES)) for index in range(len(scenes))]
    return Captioned(scenes, [_texts(scenes.scene(index), draw) for index, draw in enumerate(draws)])


@dataclass(frozen=True)
class Seen:
    """What can be seen of a thing; lengths in sides of the picture."""

    kind: str
    colour: str
    size: str  # "large", "small", or nothing for those in between
    x: float
    y: float
    depth: int  # 0 is the foremost thing
    reach: float  # radius of the circle around it

    def named(self, *, colour: str = "", size: str = "") -> str:
        """With its article: "an orange fish"."""
        words = " ".join(word for word in (size, colour, self.kind) if word)
        return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"

    @property
    def coloured(self) -> str:
        return self.named(colour=self.colour)


def look(scene: Scene) -> list[Seen]:
    """The things of a scene that can be seen, the dominant one first."""
    instances = paint(scene, _PIXELS, LEAST_VISIBLE).instances
    found = []
    for place, thing in enumerate(scene.things):
        rows, columns = np.nonzero(instances == place + 1)
        area = len(rows) / _PIXELS**2
        if area >= _LEAST_AREA:
            size = "large" if area > _LARGE else "small" if area < _SMALL else ""
            x, y = (float(axis.mean() + 0.5) / _PIXELS for axis in (columns, rows))
            depth = scene.front_to_back.index(place)
            found.append(Seen(CLASSES[thing.kind], _colour_name(thing.surface.base), size, x, y, depth, thing.radius))
    return found


def _texts(scene: Scene, draw: Draws) -> Texts:
    """Some true sentences about a scene, and almost true ones."""
    things = look(scene)
    if not things:
        return Texts(("an empty scene",))
    main = things[0]
    captions = [" and ".join(thing.coloured for thing in things), main.coloured, *_places(main)]
    negatives = [_other_thing(main, things, draw)]
    negatives += [Negative(_mirrored(caption), caption, "place") for caption in _places(main)]
    # In drawn order, so that the order of words says nothing about sizes.
    pairs = [(a, b) if draw.chance(0.5) else (b, a) for a, b in combinations(things, 2) if _both_only(a, b, things)]
    relations = [(relation, a, b) for a, b in pairs for relation in relations_of(a, b)]
    for relation, a, b in _some(relations, _MOST_RELATIONS, draw):
        caption = f"{a.coloured} {relation} {b.coloured}"
        captions.append(caption)
        negatives.append(Negative(f"{a.coloured} {_OPPOSITE[relation]} {b.coloured}", caption, "relation"))
        negatives.append(Negative(f"{b.coloured} {relation} {a.coloured}", caption, "order"))
    for a, b in _some(pairs, 1, draw):
        captions += [f"{a.coloured} and {b.coloured}"] * (len(things) > 2)
        negatives += _swaps(a, b)
        if a.size != b.size and a.size and b.size:
            captions.append(f"{a.named(size=a.size)} and {b.named(size=b.size)}")
    return Texts(tuple(dict.fromkeys(captions)), tuple(negatives))


def relations_of(a: Seen, b: Seen) -> Iterator[str]:
    """The words between two things that are true: the first is … the second."""
    if abs(a.x - b.x) > _CLEARLY:
        yield "left of" if a.x < b.x else "right of"
    if abs(a.y - b.y) > _CLEARLY:
        yield "above" if a.y < b.y else "below"
    if np.hypot(a.x - b.x, a.y - b.y) < 0.7 * (a.reach + b.reach):
        yield "in front of" if a.depth < b.depth else "behind"


def _colour_name(colour: Color) -> str:
    hue = colorsys.rgb_to_hsv(*colour)[0]
    return min(HUES, key=lambda name: abs((hue - HUES[name] + 0.5) % 1 - 0.5))


def _swaps(a: Seen, b: Seen) -> Iterator[Negative]:
    """Sentences in which two things exchange colours, or sizes."""
    if a.colour != b.colour:
        swapped = f"{a.named(colour=b.colour)} and {b.named(colour=a.colour)}"
        yield Negative(swapped, f"{a.coloured} and {b.coloured}", "colour")
    if a.size != b.size and a.size and b.size:
        swapped = f"{a.named(size=b.size)} and {b.named(size=a.size)}"
        yield Negative(swapped, f"{a.named(size=a.size)} and {b.named(size=b.size)}", "size")


def _other_thing(main: Seen, things: Sequence[Seen], draw: Draws) -> Negative:
    """A thing that is not there, in the colour of one that is."""
    absent = [kind for kind in CLASSES if kind not in {thing.kind for thing in things}]
    other = Seen(draw.pick(absent), main.colour, "", 0, 0, 0, 0)
    return Negative(other.coloured, main.coloured, "thing")


_PLACES = {"on the left": "on the right", "at the top": "at the bottom"}
_PLACES |= {other: one for one, other in _PLACES.items()}


def _places(thing: Seen) -> list[str]:
    found = []
    if abs(thing.x - 0.5) > _CLEARLY:
        found.append("on the left" if thing.x < 0.5 else "on the right")
    if abs(thing.y - 0.5) > _CLEARLY:
        found.append("at the top" if thing.y < 0.5 else "at the bottom")
    return [f"{thing.coloured} {place}" for place in found]


def _mirrored(caption: str) -> str:
    """The sentence about a place with the opposite one."""
    place = next(place for place in _PLACES if caption.endswith(place))
    return caption.removesuffix(place) + _PLACES[place]


def _both_only(a: Seen, b: Seen, things: Sequence[Seen]) -> bool:
    """Whether each of two things is the only one of its kind."""
    return all(sum(other.kind == thing.kind for other in things) == 1 for thing in (a, b))


def _some(items: Sequence[Item], count: int, draw: Draws) -> list[Item]:
    """At most `count` of the items, in a drawn order."""
    return sorted(items, key=lambda _: draw.unit())[:count]
