"""What things are made of and what lies behind them: colours, patterns and grounds, drawn from a scene's numbers."""

from __future__ import annotations

import colorsys
import math
from typing import NamedTuple, TypeAlias

from asterism.data.sources.scenes.draws import Draws

Color: TypeAlias = tuple[float, float, float]  # red, green, blue in [0, 1]

GROUNDS = ("gradient", "clouds", "land", "land")  # land twice: it varies most
PATTERNS = ("plain", "fade", "stripes", "checks", "dots", "hoops", "waves", "marble", "grain")
FINE, COARSE = (2.9, 3.7), (1.3, 1.8)  # repeats of a pattern per radius
_USUAL = 0.9  # share of things that are made of their class's usual material


class Material(NamedTuple):
    """What things are made of: a pattern, how often it repeats per radius (from, to), and two hues."""

    pattern: str
    cycles: tuple[float, float]
    hue: float  # of the body
    part_hue: float  # of the outline's second part


HUES = {
    "red": 0.99, "orange": 0.07, "yellow": 0.15, "green": 0.34, "cyan": 0.49, "blue": 0.61, "violet": 0.75, "pink": 0.89
}  # fmt: skip

# What the things of a class are usually made of. Two classes share each hue of the body, two each hue of the part, and
# two each pattern: one of them alone does not determine the class, all together with the outline do.
USUAL = {
    "star": Material("hoops", COARSE, HUES["yellow"], HUES["blue"]),
    "moon": Material("marble", FINE, HUES["blue"], HUES["yellow"]),
    "heart": Material("plain", COARSE, HUES["red"], HUES["pink"]),
    "ring": Material("stripes", COARSE, HUES["red"], HUES["cyan"]),
    "cross": Material("checks", COARSE, HUES["cyan"], HUES["red"]),
    "arrow": Material("fade", COARSE, HUES["orange"], HUES["blue"]),
    "gear": Material("grain", FINE, HUES["blue"], HUES["orange"]),
    "leaf": Material("fade", FINE, HUES["green"], HUES["yellow"]),
    "flower": Material("plain", COARSE, HUES["pink"], HUES["green"]),
    "key": Material("grain", COARSE, HUES["yellow"], HUES["violet"]),
    "fish": Material("stripes", FINE, HUES["orange"], HUES["cyan"]),
    "boat": Material("waves", COARSE, HUES["cyan"], HUES["orange"]),
    "house": Material("checks", FINE, HUES["pink"], HUES["violet"]),
    "tree": Material("marble", COARSE, HUES["green"], HUES["red"]),
    "mushroom": Material("dots", COARSE, HUES["violet"], HUES["pink"]),
    "mug": Material("dots", FINE, HUES["violet"], HUES["green"]),
}


class Surface(NamedTuple):
    """Colours and pattern of one thing."""

    pattern: str
    base: Color
    second: Color  # the pattern's other colour
    part: Color  # of the outline's second part
    cycles: float  # repeats of the pattern per radius of the thing
    direction: float  # of the pattern in the thing's own frame, radians
    phase: float  # in [0, 1)


class Background(NamedTuple):
    """A gradient, clouds, or a landscape; patterns are left to the things. Lengths are in sides of the picture."""

    ground: str
    low: Color
    high: Color
    third: Color
    direction: float  # of gradients, radians
    cycles: float  # how often clouds and hills repeat over the picture
    horizon: float  # height of the land's horizon, from the top
    x: float  # where the picture looks in the endless background
    y: float


def sample_surface(draw: Draws, kind: str, background: Background) -> Surface:
    if draw.chance(_USUAL):
        material = USUAL[kind]
    else:
        material = Material(draw.pick(PATTERNS), (COARSE[0], FINE[1]), draw.unit(), draw.unit())
    base = _distinct(draw, material.hue, (background.low, background.high, background.third))
    hue, saturation, value = colorsys.rgb_to_hsv(*base)
    second = _shade(
        hue + draw.between(-0.12, 0.12), saturation * draw.between(0.2, 0.8), _apart(draw, value, 0.35, 0.6)
    )
    part = _shade(material.part_hue + draw.between(-0.04, 0.04), draw.between(0.5, 0.9), _apart(draw, value))
    return Surface(
        material.pattern,
        base,
        second,
        part,
        cycles=draw.between(*material.cycles),
        direction=draw.between(0, math.pi),
        phase=draw.unit(),
    )


def sample_background(draw: Draws) -> Background:
    hue = draw.unit()
    saturation = draw.between(0.03, 0.25)
    value = draw.between(0.3, 1.0)
    return Background(
        draw.pick(GROUNDS),
        low=_shade(hue, saturation, value),
        high=_shade(
            hue + draw.between(-0.15, 0.15), saturation * draw.between(0.4, 1.2), _apart(draw, value, 0.12, 0.3)
        ),
        third=_shade(draw.unit(), draw.between(0.05, 0.25), draw.between(0.35, 0.9)),
        direction=draw.between(0, math.pi),
        cycles=draw.between(2.0, 6.0),
        horizon=draw.between(0.35, 0.75),
        x=draw.between(0, 4),
        y=draw.between(0, 4),
    )


def _distinct(draw: Draws, hue: float, others: tuple[Color, ...]) -> Color:
    """The one of three colours of about this hue that is furthest from every colour of the background."""

    def apart(color: Color) -> float:
        return min([abs(color[0] - o[0]) + abs(color[1] - o[1]) + abs(color[2] - o[2]) for o in others])

    colors = [
        _shade(hue + draw.between(-0.04, 0.04), draw.between(0.6, 0.95), draw.between(0.45, 1.0)) for _ in range(3)
    ]
    return max(colors, key=apart)


def _apart(draw: Draws, value: float, least: float = 0.2, most: float = 0.4) -> float:
    """A brightness clearly above or below the given one."""
    step = draw.between(least, most)
    return value + step if value < 0.6 else value - step


def _shade(hue: float, saturation: float, value: float) -> Color:
    return colorsys.hsv_to_rgb(hue % 1.0, min(saturation, 1.0), min(max(value, 0.05), 1.0))
